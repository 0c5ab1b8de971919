/* backfill-fork SEED: wait in a parent of instant clones until we are a clone, then be nobody's twin.
 *
 * A parent's seed begins with the file etc/backfill/parent, a clone's with etc/backfill/entropy. We
 * look at the first bytes of the disk itself (the page cache would show the parent's for ever). The
 * first thing that a clone does is to stir randomness of its own into the kernel's: until then it
 * would draw the same "random" numbers as all its siblings. Then comes the time of day, to the second;
 * the daemon sets it exactly when the node proves itself.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <linux/rtc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 512, SEED_BYTES = 64, LOOK_EVERY_NS = 5000000 };
static const char OURS[] = "etc/backfill/entropy";

static int fail(const char *what) {
    fprintf(stderr, "backfill-fork: ");
    perror(what);
    return 1;
}

static int reseed(const unsigned char *seed) {
    struct { int bits, bytes; unsigned char data[SEED_BYTES]; } pool = {8 * SEED_BYTES, SEED_BYTES, {0}};
    memcpy(pool.data, seed, SEED_BYTES);
    int random = open("/dev/urandom", O_RDWR);
    if (random < 0) return -1;
    int failed = ioctl(random, RNDADDENTROPY, &pool) || ioctl(random, RNDRESEEDCRNG);
    close(random);
    return failed ? -1 : 0;
}

static int set_clock(void) {
    struct rtc_time now;
    int rtc = open("/dev/rtc0", O_RDONLY);
    if (rtc < 0 || ioctl(rtc, RTC_RD_TIME, &now)) return -1;
    close(rtc);
    struct tm broken = {.tm_sec = now.tm_sec, .tm_min = now.tm_min, .tm_hour = now.tm_hour,
                        .tm_mday = now.tm_mday, .tm_mon = now.tm_mon, .tm_year = now.tm_year};
    struct timespec wanted = {timegm(&broken), 500000000};
    return clock_settime(CLOCK_REALTIME, &wanted);
}

int main(int argc, char **argv) {
    unsigned char *blocks;
    if (argc != 2 || posix_memalign((void **)&blocks, 4096, 4096)) return 2;
    int seed = open(argv[1], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (seed < 0) return fail(argv[1]);
    for (;;) {
        if (pread(seed, blocks, 4096, 0) != 4096) return fail("cannot read the seed");
        if (!memcmp(blocks, OURS, sizeof OURS)) break;
        nanosleep(&(struct timespec){0, LOOK_EVERY_NS}, NULL);
    }
    if (reseed(blocks + BLOCK)) return fail("cannot reseed the kernel's random numbers");
    if (set_clock()) return fail("cannot set the clock");
    if (ioctl(seed, BLKFLSBUF)) return fail("cannot forget the parent's seed");
    return 0;
}
