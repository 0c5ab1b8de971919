/* Asks the daemon for room when a job starts, tells it when a job has ended. Always exits with 0.
 *
 * One executable for PrologSlurmctld, EpilogSlurmctld, Prolog and Epilog; SLURM_SCRIPT_CONTEXT says
 * as which it runs. A failing prolog would cost the job two minutes and drain the node, so every
 * trouble ends in "go on" and in one line in the log. hooks.py builds it and fixes
 *   ENDPOINT    "unix:/path" or "tcp:a.b.c.d:port", or "file:/path" of a file with one of these and the
 *               timeout: a guest's image has one hook for all clusters. Without the file nobody is asked
 *   TIMEOUT_MS  for all that it does
 *   LOG_PATH    file for complaints, "" for none
 *   NEXT        the site's own program, which then runs in this one's place with all that Slurm gave;
 *               its exit status is the hook's. "" for none
 *
 * With SLURM_SCRIPT_CONTEXT=check (`backfill daemon --check`) it does for no job what it would do for
 * one, says on stdout what it heard and ends with 0, or on stderr why not and ends with 1.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static long long deadline_ms;
static char **arguments;
static const char *endpoint = ENDPOINT;
static long timeout_ms = TIMEOUT_MS;
static int checking;

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* The end of our part: 0, or the site's own program as if Slurm had started that. */
static void done(void) {
    if (checking) _exit(1);
    if (NEXT[0]) {
        struct itimerval never = {0};
        sigset_t none;
        setitimer(ITIMER_REAL, &never, NULL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        arguments[0] = NEXT;
        execv(NEXT, arguments);
        _exit(127);
    }
    _exit(0);
}

static void go_on(int signal_number) {
    /* Told to end before the site's program has run: do not claim that it went well. */
    if (NEXT[0] && !checking && signal_number == SIGTERM) {
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM);
        return;
    }
    done();
}

static const char *env(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

/* Complains in one line and lets the job go on. Never waits: not for a reader, not for a tty. */
static void fail_open(const char *why, const char *more) {
    char line[1024];
    if (checking) {
        fprintf(stderr, "%s%s%.500s\n", why, *more ? ": " : "", more);
        _exit(1);
    }
    int quiet = strcmp(env("SLURM_SCRIPT_CONTEXT"), "arrival") == 0; /* no job waits for it */
    int file = LOG_PATH[0] && !quiet ? open(LOG_PATH, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY |
                                                O_CLOEXEC, 0640) : -1;
    if (file >= 0) {
        int length = snprintf(line, sizeof line, "%lld backfill-hook %s job=%.40s node=%.100s: %s%s%.500s; "
                              "the job goes on\n", (long long)time(NULL), env("SLURM_SCRIPT_CONTEXT"),
                              env("SLURM_JOB_ID"), env("SLURMD_NODENAME"), why, *more ? ": " : "", more);
        if (length > (int)sizeof line - 1) length = sizeof line - 1;
        if (write(file, line, length) < 0) done();
    }
    done();
}

/* Waits until the socket is ready; gives up at the deadline. */
static void await(int sock, short events) {
    for (;;) {
        long long left = deadline_ms - now_ms();
        struct pollfd wanted = {sock, events, 0};
        int ready = left > 0 ? poll(&wanted, 1, (int)left) : 0;
        if (ready > 0) return;
        if (ready == 0) fail_open("no answer from the daemon in time", endpoint);
        if (errno != EINTR) fail_open("poll", strerror(errno));
    }
}

static void finish_connect(int sock) {
    int error = 0;
    socklen_t size = sizeof error;
    await(sock, POLLOUT);
    getsockopt(sock, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) fail_open("cannot reach the daemon", strerror(error));
}

static int connect_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    while (connect(sock, (struct sockaddr *)&address, sizeof address)) {
        /* EAGAIN: the daemon's queue is full, because many jobs start at once. */
        if (errno != EAGAIN) fail_open("cannot reach the daemon", strerror(errno));
        if (now_ms() >= deadline_ms) fail_open("the daemon's queue stays full", endpoint);
        poll(NULL, 0, 2);
    }
    return sock;
}

static void read_endpoint(const char *path) {
    static char place[128];
    FILE *file = fopen(path, "re");
    if (!file) done();
    if (fscanf(file, "%127s %ld", place, &timeout_ms) != 2 || timeout_ms < 10 || timeout_ms > 600000)
        fail_open("no endpoint and timeout in", path);
    fclose(file);
    endpoint = place;
}

/* The daemon trusts only privileged ports, which prove that root asks. */
static int connect_tcp(const char *host_port) {
    struct sockaddr_in there = {.sin_family = AF_INET}, here = {.sin_family = AF_INET};
    char host[64] = "";
    const char *colon = strrchr(host_port, ':');
    int yes = 1;
    if (!colon || colon - host_port >= (int)sizeof host) fail_open("bad endpoint", endpoint);
    memcpy(host, host_port, colon - host_port);
    there.sin_port = htons(atoi(colon + 1));
    if (inet_pton(AF_INET, host, &there.sin_addr) != 1) fail_open("bad endpoint", endpoint);
    for (int i = 0; i < 424; i++) {
        int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        /* Several hooks run at once, so each begins elsewhere in 600..1023. */
        here.sin_port = htons(600 + (getpid() * 7 + i) % 424);
        if (bind(sock, (struct sockaddr *)&here, sizeof here) == 0) {
            if (connect(sock, (struct sockaddr *)&there, sizeof there) == 0) return sock;
            if (errno == EINPROGRESS) {
                finish_connect(sock);
                return sock;
            }
            if (errno != EADDRNOTAVAIL && errno != EADDRINUSE)
                fail_open("cannot reach the daemon", strerror(errno));
        } else if (errno != EADDRINUSE) {
            fail_open("cannot have a privileged port", strerror(errno));
        }
        close(sock);
    }
    fail_open("no privileged port is free", "");
    return -1;
}

static void send_all(int sock, const char *text, size_t length) {
    while (length) {
        ssize_t sent = send(sock, text, length, MSG_NOSIGNAL);
        if (sent > 0) {
            text += sent;
            length -= sent;
        } else if (errno == EAGAIN) {
            await(sock, POLLOUT);
        } else if (errno != EINTR) {
            fail_open("cannot write to the daemon", strerror(errno));
        }
    }
}

static void await_reply(int sock) {
    char reply[512];
    size_t have = 0;
    while (have < sizeof reply - 1 && !memchr(reply, '\n', have)) {
        ssize_t got;
        await(sock, POLLIN);
        got = recv(sock, reply + have, sizeof reply - 1 - have, 0);
        if (got == 0) break;
        if (got < 0 && errno != EAGAIN && errno != EINTR) fail_open("no answer from the daemon", strerror(errno));
        if (got > 0) have += got;
    }
    reply[have] = 0;
    reply[strcspn(reply, "\n")] = 0;
    if (checking && strncmp(reply, "ok", 2) == 0) {
        printf("backfill-check: %s\n", reply);
        exit(0);
    }
    if (strncmp(reply, "ok", 2) == 0) done();
    if (strncmp(reply, "no ", 3) == 0) fail_open("the daemon has no room", reply + 3);
    fail_open("the daemon answered strangely", reply);
}

static void try_log(void) {
    int file = LOG_PATH[0] ? open(LOG_PATH, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640) : 0;
    if (file < 0) fail_open("cannot write to its log " LOG_PATH, strerror(errno));
}

/* Appends " key=value"; what could break the line or the word becomes '?'. */
static size_t add(char *line, size_t at, const char *key, const char *value) {
    at += sprintf(line + at, " %s=", key);
    for (; *value; value++) line[at++] = (unsigned char)*value > ' ' && *value != 127 ? *value : '?';
    return at;
}

int main(int count, char **values) {
    const char *context = env("SLURM_SCRIPT_CONTEXT");
    int arrival = strcmp(context, "arrival") == 0;
    int on_host = strstr(context, "_slurmd") != NULL;
    int ended = strncmp(context, "epilog", 6) == 0;
    const char *nodes = env(on_host ? "SLURMD_NODENAME" : "SLURM_JOB_NODELIST");
    const char *partition = env("SLURM_JOB_PARTITION"), *uid = env("SLURM_JOB_UID");
    const char *job = env("SLURM_JOB_ID"), *restart = env("SLURM_JOB_RESTART_COUNT");
    struct itimerval limit = {0};
    struct sigaction stop = {.sa_handler = go_on};
    char *line;
    size_t at;
    int sock;

    (void)count;
    arguments = values;
    /* Also when Slurm loses patience, or a log on a dead disk hangs, the job must not pay. */
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGALRM, &stop, NULL);
    sigaction(SIGPIPE, &stop, NULL);
    if (strncmp(endpoint, "file:", 5) == 0) read_endpoint(endpoint + 5);
    deadline_ms = now_ms() + timeout_ms;
    limit.it_value.tv_sec = timeout_ms / 1000 + 1;
    limit.it_value.tv_usec = timeout_ms % 1000 * 1000;
    setitimer(ITIMER_REAL, &limit, NULL);

    checking = strcmp(context, "check") == 0;
    if (checking) try_log();
    if (!ended && !arrival && !checking && strncmp(context, "prolog", 6) != 0) fail_open("not started as a prolog or epilog", context);
    line = malloc(strlen(nodes) + strlen(partition) + strlen(uid) + strlen(job) + strlen(restart) + 256);
    if (!line) fail_open("no memory", "");
    if (arrival) poll(NULL, 0, 100); /* job_submit runs before the job is in the queue */
    at = sprintf(line, "backfill1 %s", arrival ? "arrived" : ended ? "ended" : "allocated");
    at = add(line, at, "job", arrival || checking ? "0" : job);
    at = add(line, at, "nodes", nodes);
    at = add(line, at, "partition", partition);
    at = add(line, at, "uid", uid);
    /* slurmd tells a prolog how often the job was restarted, but not an epilog. */
    at = add(line, at, "restart", *restart ? restart : "-1");
    line[at++] = '\n';

    sock = strncmp(endpoint, "unix:", 5) == 0 ? connect_unix(endpoint + 5) : connect_tcp(endpoint + 4);
    send_all(sock, line, at);
    if (!ended && !arrival) await_reply(sock);
    done();
}
