/* backfill-prove EPOCH [server=IP] [credential] [mount=PATH|mount=PATH:ro]... [salt] [key=PATH] [register]
 *
 * Sets the clock and proves this guest in one call. One line per finding on standard output:
 *   correction SECONDS        by how many seconds the clock was off
 *   offset OFFSET BOUND       the server's clock minus ours after that, and how far it may be wrong
 *   self CPUS MEMORY_MB ADDRESS,ADDRESS
 *   NAME ok|no TOOK_S TEXT    munge-in, munge-out (TEXT: a credential), files:PATH, salt, clock
 *   key ok|no TOOK_S TEXT     whether PATH holds the key, which it is made to; then slurmd is told to
 *                             read it anew
 *   now EPOCH                 the clock at the very end
 * Standard input brings what jobs must not read, as they can read arguments: with `credential` a line
 * that is one, and with `key` all that follows. Daemons before that give credential=TEXT.
 * Every check runs in a child of its own: one that hangs cannot hold up the others.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <munge.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "slurmd.h"

enum { MOST = 128, NFS_MAGIC = 0x6969 };
static const double NTP_TO_UNIX = 2208988800.0, CLOSE_ENOUGH_S = 0.01, PATIENCE_S = 4.0;

static double now_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + t.tv_nsec / 1e9;
}

static int set_clock(double wanted_s) {
    struct timespec t = {(time_t)wanted_s, (long)((wanted_s - floor(wanted_s)) * 1e9)};
    return clock_settime(CLOCK_REALTIME, &t);
}

/* --- the server's clock, by one SNTP question (RFC 4330) ------------------------------------ */

static double stamp_s(const unsigned char *p) {
    unsigned long whole = (unsigned long)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
    unsigned long part = (unsigned long)p[4] << 24 | p[5] << 16 | p[6] << 8 | p[7];
    return (double)whole - NTP_TO_UNIX + part / 4294967296.0;
}

/* 0 and the offset (to be added to our clock) with its bound, or -1 and why not. */
static int ask_server(const char *address, double *offset_s, double *bound_s, const char **why) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(123)};
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) { *why = "its address is none"; return -1; }
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *why = "it does not answer on UDP port 123";
    for (int attempt = 0; s >= 0 && attempt < 3; attempt++) {
        unsigned char out[48] = {0x23}, in[64];
        double nonce = now_s(CLOCK_MONOTONIC);
        memcpy(out + 40, &nonce, 8); /* comes back as the originate stamp: proves it is our answer */
        double sent_s = now_s(CLOCK_REALTIME), began_s = now_s(CLOCK_MONOTONIC);
        struct pollfd ready = {s, POLLIN, 0};
        if (connect(s, (void *)&to, sizeof to) || send(s, out, 48, 0) != 48) {
            *why = "no packet reaches it";
            usleep(50000);
            continue;
        }
        while (poll(&ready, 1, 400) == 1) {
            long got = recv(s, in, sizeof in, 0);
            double took_s = now_s(CLOCK_MONOTONIC) - began_s;
            if (got < 0) break;
            if (got < 48 || memcmp(in + 24, out + 40, 8)) continue;
            close(s);
            if (in[0] >> 6 == 3 || in[1] == 0 || in[1] > 15) {
                *why = "it does not know the time itself";
                return -1;
            }
            double received_s = stamp_s(in + 32), answered_s = stamp_s(in + 40);
            *offset_s = ((received_s - sent_s) + (answered_s - (sent_s + took_s))) / 2;
            *bound_s = (took_s - (answered_s - received_s)) / 2;
            return 0;
        }
    }
    if (s >= 0) close(s);
    return -1;
}

/* --- checks, each in a child; what a child prints is its TEXT, its exit status the verdict ---- */

static int munge_in(const char *credential) {
    munge_err_t e = munge_decode(credential, NULL, NULL, NULL, NULL, NULL);
    /* The agent may lose our answer and start us again: then the credential was understood before. */
    if (e == EMUNGE_SUCCESS || e == EMUNGE_CRED_REPLAYED) return 0;
    printf("%s", munge_strerror(e));
    return 1;
}

/* Of no use to Slurm, which takes an empty payload for any message, and this one for none: it is the
 * hash of nothing. It is for whoever has asked, where his own credential tells who that is. The daemon
 * decodes it within seconds; the rest of the minute is for a clock that is a little off. */
static int munge_out(const char *asked) {
    static const char payload[] = "backfill-proof";
    char *credential = NULL;
    uid_t asker = MUNGE_UID_ANY;
    munge_ctx_t how = munge_ctx_create();
    munge_err_t e = munge_decode(asked, NULL, NULL, NULL, &asker, NULL);
    if (e != EMUNGE_SUCCESS && e != EMUNGE_CRED_REPLAYED) asker = MUNGE_UID_ANY;
    if (!how) e = EMUNGE_NO_MEMORY;
    else if (!(e = munge_ctx_set(how, MUNGE_OPT_TTL, 60)) && asker != MUNGE_UID_ANY)
        e = munge_ctx_set(how, MUNGE_OPT_UID_RESTRICTION, asker);
    if (!e) e = munge_encode(&credential, how, payload, sizeof payload - 1);
    printf("%s", e == EMUNGE_SUCCESS ? credential : munge_strerror(e));
    return e != EMUNGE_SUCCESS;
}

/* Users may write there, too, and would take names that they can foresee. */
static int open_new(const char *folder, char *path, size_t size) {
    char host[65];
    unsigned long long number;
    int file = -1;
    gethostname(host, sizeof host);
    for (int tries = 0; file < 0 && tries < 16; tries++) {
        if (getrandom(&number, sizeof number, 0) != sizeof number) return -1;
        snprintf(path, size, "%s/.backfill-%s-%016llx", folder, host, number);
        file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
        if (file < 0 && errno != EEXIST) return -1;
    }
    return file;
}

static int files(const char *wanted) {
    char path[512], probe[640];
    snprintf(path, sizeof path, "%s", wanted);
    char *mode = strrchr(path, ':');
    int writable = !(mode && !strcmp(mode, ":ro"));
    if (!writable) *mode = 0;
    struct statfs fs;
    if (statfs(path, &fs)) { printf("%s", strerror(errno)); return 1; }
    if (fs.f_type != NFS_MAGIC) { printf("not mounted"); return 1; }
    if (!writable) return 0;
    int file = open_new(path, probe, sizeof probe);
    /* The client leaves this question to the server, so one that answers has refused it to root. An
     * export that is read-only is told before that, as EROFS. */
    if (file < 0 && (errno == EACCES || errno == EPERM)) {
        printf("it lets root write nothing there, as with root_squash");
        return 0;
    }
    int bad = file < 0 || write(file, "x", 1) != 1 || fsync(file);
    if (bad) printf("cannot be written: %s", strerror(errno));
    if (file >= 0) { close(file); unlink(probe); }
    return bad;
}

/* A run of the states that has succeeded, or else all that they come to, seen one by one. */
static int salt(const char *unused) {
    (void)unused;
    FILE *file = fopen("/run/backfill/salt", "r");
    char line[200];
    if (file && fgets(line, sizeof line, file) && !strncmp(line, "ok", 2)) {
        line[strcspn(line, "\n")] = 0;
        printf("%s", line);
        return 0;
    }
    execl("/usr/local/sbin/backfill-stated", "backfill-stated", (char *)NULL);
    printf("its states have not succeeded yet");
    return 1;
}

static struct check { char name[520]; int (*work)(const char *); const char *with; int out; pid_t pid; double took_s; } checks[MOST];
static int count;

static void want(const char *name, int (*work)(const char *), const char *with) {
    if (count == MOST) {
        fprintf(stderr, "backfill-prove: it cannot try more than %d things\n", MOST);
        exit(1);
    }
    struct check *c = &checks[count++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->work = work;
    c->with = with;
}

static void want_munge(const char *credential) {
    want("munge-in", munge_in, credential);
    want("munge-out", munge_out, credential);
}

static void start(struct check *c) {
    int ends[2];
    if (pipe(ends) || (c->pid = fork()) < 0) { perror("backfill-prove"); exit(1); }
    if (c->pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        int bad = c->work(c->with);
        fflush(stdout);
        _exit(bad);
    }
    close(ends[1]);
    c->out = ends[0];
}

static void finish(struct check *c, double began_s) {
    char text[4096];
    size_t length = 0;
    int status = 256, late = 0;
    for (;;) {
        int left_ms = (int)((began_s + PATIENCE_S - now_s(CLOCK_MONOTONIC)) * 1000);
        struct pollfd ready = {c->out, POLLIN, 0};
        if (poll(&ready, 1, left_ms > 0 ? left_ms : 0) < 1) { late = 1; break; }
        long got = read(c->out, text + length, sizeof text - 1 - length);
        if (got <= 0) break;
        length += got;
    }
    text[length] = 0;
    for (char *p = text; *p; p++) if (*p == '\n') *p = ' ';
    if (late) kill(c->pid, SIGKILL); /* one that hangs in the kernel stays there, and we do not wait */
    else waitpid(c->pid, &status, 0);
    double took_s = now_s(CLOCK_MONOTONIC) - began_s;
    printf("%s %s %.3f %s\n", c->name, !late && !status ? "ok" : "no", took_s, late ? "it hangs" : text);
}

/* --- this guest itself ----------------------------------------------------------------------- */

static void tell_self(void) {
    struct sysinfo memory;
    struct ifaddrs *all = NULL;
    sysinfo(&memory);
    printf("self %ld %lu ", sysconf(_SC_NPROCESSORS_ONLN), memory.totalram / 1048576 * memory.mem_unit);
    if (getifaddrs(&all) == 0)
        for (struct ifaddrs *i = all; i; i = i->ifa_next) {
            char text[INET_ADDRSTRLEN];
            if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
            inet_ntop(AF_INET, &((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, text, sizeof text);
            printf("%s,", text);
        }
    printf("\n");
}

/* --- what standard input brings ----------------------------------------------------------------- */

/* Byte by byte, as the key may follow. */
static int read_line(char *line, size_t size) {
    size_t length = 0;
    while (length < size && read(0, line + length, 1) == 1 && line[length] != '\n') length++;
    if (length == size || line[length] != '\n') return -1;
    line[length] = 0;
    return 0;
}

/* --- Slurm's own key, which may have been changed while this guest stood still ------------------ */

enum { MOST_KEY = 65536 };

static long read_all(int file, char *to) {
    long length = 0, got;
    while (length < MOST_KEY && (got = read(file, to + length, MOST_KEY - length)) > 0) length += got;
    return length;
}

/* 0: the file was the same, 1: it is now, -1: it cannot be made so. */
static int renew(const char *path) {
    static char wanted[MOST_KEY], had[MOST_KEY], fresh[600];
    long length = read_all(0, wanted), before = -1;
    if (!length) { errno = ENODATA; return -1; }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) { before = read_all(file, had); close(file); }
    if (before == length && !memcmp(wanted, had, length)) return 0;
    snprintf(fresh, sizeof fresh, "%s.new", path);
    unlink(fresh);
    file = open(fresh, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0400);
    if (file < 0) return -1;
    int bad = write(file, wanted, length) != length || fsync(file);
    close(file);
    if (bad || rename(fresh, path)) { unlink(fresh); return -1; }
    return 1;
}

/* Say how it went; 1 if slurmd has to read it anew. */
static int prove_key(const char *path) {
    double began_s = now_s(CLOCK_MONOTONIC);
    int made = renew(path);
    printf("key %s %.3f %s\n", made < 0 ? "no" : "ok", now_s(CLOCK_MONOTONIC) - began_s,
           made < 0 ? strerror(errno) : made ? "it is new" : "");
    return made == 1;
}

static int settle_clock(double wanted_s, const char *server) {
    double offset_s = 0, bound_s = 0, before_s = now_s(CLOCK_REALTIME), mono_s = now_s(CLOCK_MONOTONIC);
    const char *why = "";
    /* Coarsely first: the server may take a question from another year for an attack. */
    if (set_clock(wanted_s)) { perror("backfill-prove: cannot set the clock"); return 1; }
    if (*server) {
        int heard = !ask_server(server, &offset_s, &bound_s, &why);
        if (heard && fabs(offset_s) > CLOSE_ENOUGH_S) {
            set_clock(now_s(CLOCK_REALTIME) + offset_s);
            heard = !ask_server(server, &offset_s, &bound_s, &why);
        }
        if (heard) printf("offset %.6f %.6f\n", offset_s, bound_s);
        else printf("clock no 0 the time server %s cannot be asked: %s\n", server, why);
    }
    double correction_s = now_s(CLOCK_REALTIME) - before_s - (now_s(CLOCK_MONOTONIC) - mono_s);
    printf("correction %.6f\n", correction_s);
    return 0;
}

int main(int argc, char **argv) {
    char *end = NULL;
    double wanted_s = argc > 1 ? strtod(argv[1], &end) : 0.0;
    if (argc < 2 || *end || !(wanted_s > 1e9 && wanted_s < 1e11)) {
        fprintf(stderr, "backfill-prove: give the time as seconds since 1970, for example 1700000000.25\n");
        return 2;
    }
    static char credential[4096];
    const char *server = "", *key = "";
    int report = 0, is_new = 0;
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '='), name[520];
        if (!strcmp(argv[i], "register")) report = 1;
        else if (!strcmp(argv[i], "salt")) want("salt", salt, "");
        else if (value && !strncmp(argv[i], "server=", 7)) server = value + 1;
        else if (value && !strncmp(argv[i], "key=", 4)) key = value + 1;
        else if (value && !strncmp(argv[i], "credential=", 11)) want_munge(value + 1);
        else if (!strcmp(argv[i], "credential")) {
            if (read_line(credential, sizeof credential)) {
                fprintf(stderr, "backfill-prove: standard input brings no credential\n");
                return 1;
            }
            want_munge(credential);
        } else if (value && !strncmp(argv[i], "mount=", 6)) {
            snprintf(name, sizeof name, "files:%s", value + 1);
            want(name, files, value + 1);
        } else {
            fprintf(stderr, "backfill-prove: '%s' is no check that I know\n", argv[i]);
            return 2;
        }
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (settle_clock(wanted_s, server)) return 1;
    if (*key && prove_key(key)) is_new = 1;
    if ((report || is_new) && call_slurmd(is_new ? 5.0 : 0)) fprintf(stderr, "backfill-prove: slurmd does not run here\n");
    double began_s = now_s(CLOCK_MONOTONIC);
    for (int i = 0; i < count; i++) start(&checks[i]);
    for (int i = 0; i < count; i++) finish(&checks[i], began_s);
    tell_self();
    printf("now %.6f\n", now_s(CLOCK_REALTIME));
    return 0;
}
