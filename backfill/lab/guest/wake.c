/* backfill-wake EPOCH: set the clock after a pause and make slurmd report to its controller at once. */
#include <math.h>
#include <stdlib.h>
#include "slurmd.h"

int main(int argc, char **argv) {
    char *end = NULL;
    double wanted_s = argc == 2 ? strtod(argv[1], &end) : 0.0;
    if (argc != 2 || *end || !(wanted_s > 1e9 && wanted_s < 1e11)) {
        fprintf(stderr, "backfill-wake: give the time as seconds since 1970, for example 1700000000.25\n");
        return 2;
    }
    struct timespec before, wanted = {(time_t)wanted_s, (long)((wanted_s - floor(wanted_s)) * 1e9)};
    clock_gettime(CLOCK_REALTIME, &before);
    if (clock_settime(CLOCK_REALTIME, &wanted)) {
        perror("backfill-wake: cannot set the clock");
        return 1;
    }
    printf("%.6f\n", (double)(wanted.tv_sec - before.tv_sec) + (wanted.tv_nsec - before.tv_nsec) / 1e9);
    if (call_slurmd(0)) fprintf(stderr, "backfill-wake: slurmd does not run here; clock set only\n");
    return 0;
}
