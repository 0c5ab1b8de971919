/* backfill-fence hold
 * backfill-fence clear EPOCH [JOB]...
 *
 * Holds the jobs of this guest across a stop, and lets none of them run that must not run any more.
 * `hold` freezes every job by the kernel's freezer (version 2). `clear` sets the clock, ends the jobs
 * that it names, all of which it holds first, and then lets all others go on. When anything of that
 * fails nothing goes on. One line per job on standard output, JOB "stray" for processes of users that
 * belong to no job:
 *   held|ended JOB PROCESSES     and first of all, by `clear`: correction SECONDS
 * Strays are ended together with any job, for nobody can tell that they are not of it.
 *
 * Where Slurm tracks jobs by control groups these are frozen; elsewhere each job gets one of ours. A
 * process that is moved into a frozen group is frozen before its next instruction, and so are all that
 * it has started: new ones are looked for until there are none.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_ROOM = 1024, GROUPS = 1024, NAME = 32, PATH = 512, FIRST_USER = 1000, NOBODY = 65534, ROUNDS = 200 };
static const char ROOT[] = "/sys/fs/cgroup", OURS[] = "/backfill.fence/", STRAY[] = "stray";
static const double END_S = 10.0;

static struct process { int pid, parent, uid, step; char job[NAME], group[PATH]; } *seen;
static int count, room;
static struct group { char job[NAME], path[PATH]; } groups[GROUPS];
static int group_count;

static int fail(const char *what) {
    fprintf(stderr, "backfill-fence: %s: %s\n", what, strerror(errno));
    return -1;
}

/* --- what runs here ---------------------------------------------------------------------------- */

static long slurp(int pid, const char *name, char *into, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    long got = file < 0 ? -1 : read(file, into, size - 1);
    if (file >= 0) close(file);
    into[got < 0 ? 0 : got] = 0;
    return got;
}

static void copy_number(char *into, const char *from) {
    snprintf(into, NAME, "%.*s", (int)strspn(from, "0123456789"), from);
}

/* For one more: a process that is left out would run on, and be told as held. */
static int make_room(void) {
    if (count < room) return 0;
    int wanted = room ? 2 * room : FIRST_ROOM;
    struct process *more = realloc(seen, wanted * sizeof *more);
    if (!more) return fail("no memory for all processes");
    seen = more;
    room = wanted;
    return 0;
}

static void read_process(int pid) {
    static char text[4096];
    struct process *p = &seen[count];
    if (slurp(pid, "stat", text, sizeof text) <= 0) return; /* it ended */
    char *open = strchr(text, '('), *close = strrchr(text, ')'), state, *line;
    memset(p, 0, sizeof *p);
    if (!open || !close || sscanf(close + 1, " %c %d", &state, &p->parent) != 2) return;
    if (state == 'Z' || state == 'X') return;
    *close = 0;
    int named = !strcmp(open + 1, "slurmstepd");
    p->pid = pid;
    if (slurp(pid, "status", text, sizeof text) <= 0 || !(line = strstr(text, "\nUid:"))) return;
    p->uid = atoi(line + 5);
    /* Anybody may call his program so, but not run it as root. */
    p->step = named && p->uid == 0;
    if (p->step && slurp(pid, "cmdline", text, sizeof text) > 0 && (line = strchr(text, '[')))
        copy_number(p->job, line + 1);
    if (slurp(pid, "cgroup", text, sizeof text) > 0 && (line = strstr(text, "0::")))
        snprintf(p->group, PATH, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    count++;
}

static const struct process *find(int pid) {
    for (int i = 0; i < count; i++)
        if (seen[i].pid == pid) return &seen[i];
    return NULL;
}

/* The slurmstepd above all others over this process: one that is just starting a job has children of
 * its own name, and these are the job's. */
static const struct process *step_of(const struct process *p) {
    const struct process *top = NULL;
    for (int depth = 0; depth < 1000 && (p = find(p->parent)); depth++)
        if (p->step) top = p;
    return top;
}

static void name_by_environment(struct process *p) {
    static char text[131072];
    long got = slurp(p->pid, "environ", text, sizeof text);
    snprintf(p->job, NAME, "%s", STRAY);
    for (char *word = text; got > 0 && word < text + got; word += strlen(word) + 1)
        if (!strncmp(word, "SLURM_JOB_ID=", 13) && isdigit((unsigned char)word[13])) {
            copy_number(p->job, word + 13);
            return;
        }
}

/* Whose is it? An empty job: nobody's, such as the system's own. */
static void name_job(struct process *p) {
    char *tracked = strstr(p->group, "/job_");
    const struct process *step = step_of(p);
    if (p->step && !step) *p->job = 0; /* it looks after the job, and is no part of it */
    else if (tracked && isdigit((unsigned char)tracked[5])) {
        size_t length = strlen(p->group);
        int of_slurm = length > 6 && !strcmp(p->group + length - 6, "/slurm");
        if (of_slurm) *p->job = 0;
        else copy_number(p->job, tracked + 5);
    } else if (!strncmp(p->group, OURS, sizeof OURS - 1))
        snprintf(p->job, NAME, "%.*s", NAME - 1, p->group + sizeof OURS - 1);
    else if (step) snprintf(p->job, NAME, "%s", step->job);
    else if (p->uid >= FIRST_USER && p->uid != NOBODY) name_by_environment(p);
    else *p->job = 0;
}

static int scan(void) {
    DIR *proc = opendir("/proc");
    if (!proc) return fail("/proc");
    int bad = count = 0;
    for (struct dirent *entry; !bad && (entry = readdir(proc));)
        if (isdigit((unsigned char)entry->d_name[0]) && !(bad = make_room())) read_process(atoi(entry->d_name));
    closedir(proc);
    if (bad) return -1;
    for (int i = 0; i < count; i++) /* first those whose name others take over */
        if (!seen[i].step) name_job(&seen[i]);
    for (int i = 0; i < count; i++)
        if (seen[i].step && step_of(&seen[i])) name_job(&seen[i]);
    for (int i = 0; i < count; i++)
        if (seen[i].step && !step_of(&seen[i])) *seen[i].job = 0;
    return 0;
}

/* --- groups ------------------------------------------------------------------------------------ */

static int put(const char *group, const char *file, const char *text) {
    char path[PATH + 64];
    snprintf(path, sizeof path, "%s%s/%s", ROOT, group, file);
    int to = open(path, O_WRONLY | O_CLOEXEC);
    int bad = to < 0 || write(to, text, strlen(text)) < 0;
    int why = errno;
    if (to >= 0) close(to);
    errno = why;
    return bad ? -1 : 0;
}

/* The group by which this process is held. Of Slurm's that of the whole job: those of its steps are
 * what Slurm itself freezes for a suspend. */
static void group_for(const struct process *p, char *into) {
    char *tracked = strstr(p->group, "/job_");
    snprintf(into, PATH, "%s%s", OURS, p->job);
    if (!tracked) return;
    size_t length = (size_t)(tracked - p->group) + 1 + strcspn(tracked + 1, "/");
    snprintf(into, PATH, "%.*s", (int)length, p->group);
}

static struct group *known(const char *path) {
    for (int i = 0; i < group_count; i++)
        if (!strcmp(groups[i].path, path)) return &groups[i];
    return NULL;
}

/* Make and freeze the group, once. */
static struct group *close_group(const char *job, const char *path) {
    char whole[PATH + 64];
    struct group *g = known(path);
    if (g) return g;
    if (group_count == GROUPS) { errno = E2BIG; fail("jobs"); return NULL; }
    if (!strncmp(path, OURS, sizeof OURS - 1)) {
        snprintf(whole, sizeof whole, "%s/backfill.fence", ROOT);
        mkdir(whole, 0755);
        snprintf(whole, sizeof whole, "%s%s", ROOT, path);
        mkdir(whole, 0755);
    }
    if (put(path, "cgroup.freeze", "1")) { fail(path); return NULL; }
    g = &groups[group_count++];
    snprintf(g->job, NAME, "%s", job);
    snprintf(g->path, PATH, "%s", path);
    return g;
}

static int within(const char *group, const char *of) {
    size_t length = strlen(of);
    return !strncmp(group, of, length) && (!group[length] || group[length] == '/');
}

/* Freeze all jobs. A look that finds nothing new ends it. */
static int hold(void) {
    for (int round = 0; round < ROUNDS; round++) {
        int moved = 0;
        if (scan()) return -1;
        for (int i = 0; i < count; i++) {
            struct process *p = &seen[i];
            char path[PATH], number[16];
            if (!*p->job) continue;
            group_for(p, path);
            struct group *g = known(path);
            if (!g) moved++;
            if (!g && !(g = close_group(p->job, path))) return -1;
            if (within(p->group, path)) continue;
            moved++;
            snprintf(number, sizeof number, "%d", p->pid);
            if (put(path, "cgroup.procs", number) && errno != ESRCH) return fail(path);
        }
        if (!moved) return 0;
    }
    errno = EAGAIN;
    return fail("processes of jobs appear faster than they can be held");
}

static int size_of(const char *job) {
    int processes = 0;
    for (int i = 0; i < count; i++) processes += !strcmp(seen[i].job, job);
    return processes;
}

/* --- the end of a job -------------------------------------------------------------------------- */

static double now_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + t.tv_nsec / 1e9;
}

/* Frozen, none of them can start another. Slurm's slurmstepd, frozen with them, is none of them: it
 * tells slurmd of their end. */
static int end_job(const char *job) {
    double limit_s = now_s(CLOCK_MONOTONIC) + END_S;
    for (;;) {
        int left = 0;
        if (scan()) return -1;
        for (int i = 0; i < count; i++)
            if (!strcmp(seen[i].job, job) && ++left) kill(seen[i].pid, SIGKILL);
        if (!left) return 0;
        if (now_s(CLOCK_MONOTONIC) > limit_s) { errno = EBUSY; return fail(job); }
        nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
}

/* --- the two verbs ----------------------------------------------------------------------------- */

static void tell(const char *word, const char *job) { printf("%s %s %d\n", word, job, size_of(job)); }

static int tell_held(void) {
    for (int i = 0, j; i < group_count; i++) {
        for (j = 0; j < i && strcmp(groups[j].job, groups[i].job);) j++;
        if (j == i) tell("held", groups[i].job);
    }
    return 0;
}

static int set_clock(double wanted_s) {
    struct timespec t = {(time_t)wanted_s, (long)((wanted_s - floor(wanted_s)) * 1e9)};
    double before_s = now_s(CLOCK_REALTIME);
    if (clock_settime(CLOCK_REALTIME, &t)) return fail("cannot set the clock");
    printf("correction %.6f\n", wanted_s - before_s);
    return 0;
}

/* All that an earlier `hold` has frozen, whoever asked for it; an empty group of ours goes. */
static int let_go(void) {
    char path[PATH], whole[PATH + 64];
    snprintf(whole, sizeof whole, "%s/backfill.fence", ROOT);
    DIR *ours = opendir(whole);
    for (struct dirent *entry; ours && (entry = readdir(ours));) {
        if (entry->d_type != DT_DIR || *entry->d_name == '.') continue;
        snprintf(path, sizeof path, "%s%.255s", OURS, entry->d_name);
        if (put(path, "cgroup.freeze", "0")) return fail(path);
        snprintf(whole, sizeof whole, "%s%s", ROOT, path);
        rmdir(whole); /* which fails while anything lives in it */
    }
    if (ours) closedir(ours);
    if (scan()) return -1;
    for (int i = 0; i < count; i++) {
        if (!strstr(seen[i].group, "/job_")) continue;
        group_for(&seen[i], path);
        if (put(path, "cgroup.freeze", "0") && errno != ENOENT) return fail(path);
    }
    return 0;
}

static int clear(int argc, char **argv, double wanted_s) {
    if (argc > 3 && hold()) return -1;
    if (set_clock(wanted_s)) return -1;
    for (int i = 3; i < argc; i++) {
        if (!size_of(argv[i])) continue;
        tell("ended", argv[i]);
        if (end_job(argv[i])) return -1;
        if (size_of(STRAY)) tell("ended", STRAY);
        if (end_job(STRAY)) return -1;
    }
    return let_go();
}

/* Whatever is not exactly as above: nothing is done. */
static int readable(int argc, char **argv, double *wanted_s) {
    char *end = NULL;
    if (argc == 2 && !strcmp(argv[1], "hold")) return 1;
    if (argc < 3 || strcmp(argv[1], "clear")) return 0;
    *wanted_s = strtod(argv[2], &end);
    if (*end || !(*wanted_s > 1e9 && *wanted_s < 1e11)) return 0;
    for (int i = 3; i < argc; i++)
        if (!*argv[i] || argv[i][strspn(argv[i], "0123456789")]) return 0;
    return 1;
}

int main(int argc, char **argv) {
    double wanted_s = 0;
    if (!readable(argc, argv, &wanted_s)) {
        fprintf(stderr, "backfill-fence: use: hold, or clear EPOCH [JOB]...\n");
        return 2;
    }
    /* Before any program of a job that is not held yet. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 50});
    if (!strcmp(argv[1], "hold")) return hold() || tell_held() ? 1 : 0;
    return clear(argc, argv, wanted_s) ? 1 : 0;
}
