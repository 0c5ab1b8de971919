/* Make slurmd report to its controller, and read its configuration and key anew. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLURMD_PID "/run/slurmd.pid"

/* 1 if the process catches SIGHUP, 0 if that would end it, -1 if there is no such process. */
static int catches_hup(int pid) {
    char path[64], line[256];
    unsigned long long caught = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "SigCgt: %llx", &caught) == 1) break;
    fclose(file);
    return caught >> (SIGHUP - 1) & 1;
}

/* Send it SIGHUP; -1 if no slurmd runs here.
 *
 * From 24.11 on, slurmd starts itself anew at each SIGHUP, and a second one ends the new process until
 * that catches it (measured: its node was silent for good, its jobs ran on). One that only starts
 * reports by itself. So it is waited for `wait_s`, for those who need it to read something.
 */
static int call_slurmd(double wait_s) {
    const struct timespec pause = {0, 20000000};
    for (double left_s = wait_s;; left_s -= 0.02) {
        FILE *file = fopen(SLURMD_PID, "r");
        int pid = 0;
        if (file && fscanf(file, "%d", &pid) != 1) pid = 0;
        if (file) fclose(file);
        int catches = pid > 1 ? catches_hup(pid) : -1;
        if (catches == 1) return kill(pid, SIGHUP);
        if (left_s <= 0) return catches;
        nanosleep(&pause, NULL);
    }
}
