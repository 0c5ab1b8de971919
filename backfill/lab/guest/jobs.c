/* backfill-jobs: count the processes of Slurm jobs here, as "GOING STOPPED" on one line.
 *
 * A job's processes are the descendants of its slurmstepd. The stop signal of a `scontrol suspend`
 * that was sent while this guest stood still may arrive after the `scontrol resume` that followed:
 * then all of them are stopped although Slurm shows the job as running.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 65536 };
static struct { int pid, parent, state, step; } seen[MOST];
static int count;

static void read_process(const char *pid) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return; /* it ended */
    size_t got = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[got] = 0;
    char *open = strchr(line, '('), *close = strrchr(line, ')');
    if (!open || !close || count == MOST) return;
    char state;
    int parent;
    if (sscanf(close + 1, " %c %d", &state, &parent) != 2) return;
    *close = 0;
    seen[count].pid = atoi(pid);
    seen[count].parent = parent;
    seen[count].state = state;
    seen[count].step = !strcmp(open + 1, "slurmstepd");
    count++;
}

static int in_job(int i) {
    for (int depth = 0; depth < 100; depth++) {
        int j = 0;
        while (j < count && seen[j].pid != seen[i].parent) j++;
        if (j == count) return 0;
        if (seen[j].step) return 1;
        i = j;
    }
    return 0;
}

int main(void) {
    DIR *proc = opendir("/proc");
    if (!proc) { perror("backfill-jobs: /proc"); return 1; }
    for (struct dirent *entry; (entry = readdir(proc));)
        if (isdigit((unsigned char)entry->d_name[0])) read_process(entry->d_name);
    int going = 0, stopped = 0;
    for (int i = 0; i < count; i++)
        if (!seen[i].step && in_job(i)) *(seen[i].state == 'T' ? &stopped : &going) += 1;
    printf("%d %d\n", going, stopped);
    return 0;
}
