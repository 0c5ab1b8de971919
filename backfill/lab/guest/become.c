/* backfill-become [SEED]: give this guest the identity that its seed has brought, in one process.
 *
 * Without SEED the seed is unpacked already. With it we are in a parent of instant clones and wait
 * until we are a clone. A parent's seed begins with the file etc/backfill/parent, a clone's with
 * etc/backfill/entropy. We look at the first bytes of the disk itself (the page cache would show the
 * parent's for ever). The first thing that a clone does is to stir randomness of its own into the
 * kernel's: until then it would draw the same "random" numbers as all its siblings. Then comes the
 * time of day, to the second; the daemon sets it exactly when the node proves itself.
 *
 * One program for all of it, because without KVM each further one costs a clone some hundredths of a
 * second: its start alone, in the kernel, is thousands of blocks of code to translate.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <linux/rtc.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 512, SEED_BYTES = 64, ALIGNED = 4096, LENGTH = 65536, LOOK_EVERY_NS = 5000000 };
static const char ENTROPY[] = "etc/backfill/entropy";

static int fail(const char *what) {
    fprintf(stderr, "backfill-become: ");
    perror(what);
    return -1;
}

/* --- randomness and time ---------------------------------------------------------------------- */

static int reseed(const unsigned char *seed) {
    struct { int bits, bytes; unsigned char data[SEED_BYTES]; } pool = {8 * SEED_BYTES, SEED_BYTES, {0}};
    memcpy(pool.data, seed, SEED_BYTES);
    int random = open("/dev/urandom", O_RDWR);
    if (random < 0) return -1;
    int failed = ioctl(random, RNDADDENTROPY, &pool) || ioctl(random, RNDRESEEDCRNG);
    close(random);
    return failed ? -1 : 0;
}

/* Days since 1970 of a day of our calendar; the C library's own way reads files about time zones. */
static long days(int year, int month, int day) {
    year -= month < 3; /* so that a leap day is a year's last */
    return 365L * year + year / 4 - year / 100 + year / 400 + (153 * (month + (month < 3 ? 9 : -3)) + 2) / 5
           + day - 719469;
}

static int set_clock(void) {
    struct rtc_time now;
    int rtc = open("/dev/rtc0", O_RDONLY);
    if (rtc < 0 || ioctl(rtc, RTC_RD_TIME, &now)) return -1;
    close(rtc);
    long day = days(now.tm_year + 1900, now.tm_mon + 1, now.tm_mday);
    struct timespec wanted = {((day * 24 + now.tm_hour) * 60 + now.tm_min) * 60 + now.tm_sec, 500000000};
    return clock_settime(CLOCK_REALTIME, &wanted);
}

/* --- files ------------------------------------------------------------------------------------ */

static int write_file(const char *path, const void *content, size_t length, int mode) {
    int file = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat old;
    int bad = file < 0 || fchmod(file, mode) || fstat(file, &old) || (old.st_size && ftruncate(file, 0))
              || write(file, content, length) != (long)length;
    if (file >= 0) close(file);
    return bad ? fail(path) : 0;
}

static void make_folders(char *path) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
}

/* A plain tar of files and links, as the daemon writes it. Two blocks of zero mark its end: without them
 * it was longer than what is read here, and files are missing. */
static int unpack(const char *tar, const char *end) {
    static const char mark[2 * BLOCK];
    while (end - tar >= BLOCK && *tar) {
        const char *head = tar;
        char path[300], target[101];
        long length = strtol(head + 124, NULL, 8);
        if (head[345]) snprintf(path, sizeof path, "/%.155s/%.100s", head + 345, head);
        else snprintf(path, sizeof path, "/%.100s", head);
        tar += BLOCK;
        if (length < 0 || length > end - tar) { errno = EBADMSG; return fail(path); }
        make_folders(path);
        if (head[156] == '2') {
            snprintf(target, sizeof target, "%.100s", head + 157);
            unlink(path);
            if (symlink(target, path)) return fail(path);
        } else if (write_file(path, tar, length, (int)strtol(head + 100, NULL, 8))) return -1;
        tar += (length + BLOCK - 1) / BLOCK * BLOCK;
    }
    if (end - tar >= (long)sizeof mark && !memcmp(tar, mark, sizeof mark)) return 0;
    errno = EBADMSG;
    return fail("the seed has no end");
}

/* Wait until SEED is a clone's, then be nobody's twin. */
static int wait_for(const char *path) {
    char *seed;
    if (posix_memalign((void **)&seed, ALIGNED, LENGTH)) return -1;
    int disk = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (disk < 0) return fail(path);
    /* What the parent has read of its own seed would be in the page cache of all clones. */
    if (ioctl(disk, BLKFLSBUF)) return fail("cannot forget the parent's seed");
    for (int looks = 0;; looks++) {
        if (pread(disk, seed, LENGTH, 0) != LENGTH) return fail("cannot read the seed");
        if (!memcmp(seed, ENTROPY, sizeof ENTROPY)) break;
        /* The sign to freeze comes when we have been here before: what is done once is done. */
        if (looks == 2) puts("BACKFILL-PARENT"), fflush(stdout);
        nanosleep(&(struct timespec){0, LOOK_EVERY_NS}, NULL);
    }
    if (reseed((unsigned char *)seed + BLOCK)) return fail("cannot reseed the kernel's random numbers");
    if (set_clock()) return fail("cannot set the clock");
    close(disk);
    /* The first file's bytes are in the kernel now and must not be used twice. */
    return unpack(seed + 2 * BLOCK, seed + LENGTH);
}

/* What a guest that boots has its seed's randomness from: the unpacked file, used once. */
static int use_entropy(void) {
    char path[sizeof ENTROPY + 1], bytes[SEED_BYTES];
    snprintf(path, sizeof path, "/%s", ENTROPY);
    int from = open(path, O_RDONLY), to = open("/dev/urandom", O_WRONLY);
    long got = from < 0 ? 0 : read(from, bytes, sizeof bytes);
    if (got > 0 && write(to, bytes, got) != got) return fail("/dev/urandom");
    close(from);
    close(to);
    unlink(path);
    return 0;
}

/* --- who we are ------------------------------------------------------------------------------- */

static char node[300], mac[300], address[300], gateway[300], controller[300];

/* Our names and addresses out of shell assignments; their values hold no quotes of their own. */
static int read_identity(void) {
    struct { const char *key; char *value; } wanted[] = {
        {"NODE_NAME=", node}, {"MAC=", mac}, {"ADDRESS=", address}, {"GATEWAY=", gateway},
        {"CONTROLLER=", controller}};
    char line[4096];
    FILE *file = fopen("/etc/backfill/identity", "re");
    if (!file) return fail("/etc/backfill/identity");
    while (fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
            size_t skip = strlen(wanted[i].key);
            if (strncmp(line, wanted[i].key, skip)) continue;
            skip += strspn(line + skip, "'");
            snprintf(wanted[i].value, 300, "%.*s", (int)strcspn(line + skip, "'\n"), line + skip);
        }
    fclose(file);
    return 0;
}

/* The other machines by name: jobs over several of them may reach one another in any way. */
static size_t read_peers(char *text, size_t room) {
    FILE *file = fopen("/etc/backfill/peers", "re");
    size_t length = file ? fread(text, 1, room, file) : 0;
    if (file) fclose(file);
    return length;
}

static int take_name(void) {
    unsigned char bytes[16];
    static char text[32768];
    struct stat seen;
    size_t length;
    if (sethostname(node, strlen(node))) return fail("cannot set the host's name");
    snprintf(text, sizeof text, "%s\n", node);
    if (write_file("/etc/hostname", text, strlen(text), 0644)) return -1;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return fail("no random numbers");
    bytes[6] = (bytes[6] & 0x0f) | 0x40; /* as a UUID of version 4 says that it is random */
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 4, "%02x\n", bytes[i]);
    if (write_file("/etc/machine-id", text, 33, 0444)) return -1;
    /* Where Salt looks after the node its seed has brought this file. */
    if (stat("/etc/salt/minion_id", &seen) == 0 && seen.st_size) return 0;
    length = (size_t)snprintf(text, sizeof text, "127.0.0.1 localhost\n%.250s ctl\n%.*s %.250s\n", controller,
                              (int)strcspn(address, "/"), address, node);
    length += read_peers(text + length, sizeof text - length);
    return write_file("/etc/hosts", text, length, 0644);
}

static int own_key(void) {
    struct stat home;
    if (stat("/etc/munge", &home)) return fail("/etc/munge");
    if (access("/etc/munge/munge.key", F_OK)) return 0; /* Slurm has its own, which is root's */
    return chown("/etc/munge/munge.key", home.st_uid, home.st_gid) ? fail("/etc/munge/munge.key") : 0;
}

/* --- network ---------------------------------------------------------------------------------- */

static struct sockaddr ipv4(in_addr_t value) {
    struct sockaddr_in made = {.sin_family = AF_INET, .sin_addr.s_addr = value};
    struct sockaddr plain;
    memcpy(&plain, &made, sizeof plain);
    return plain;
}

static int set_address(int s, unsigned long what, in_addr_t value) {
    struct ifreq card = {.ifr_name = "eth0", .ifr_addr = ipv4(value)};
    return ioctl(s, what, &card);
}

static int up(int s, const char *name) {
    struct ifreq card = {.ifr_flags = IFF_UP};
    strcpy(card.ifr_name, name);
    return ioctl(s, SIOCSIFFLAGS, &card);
}

static int join_network(void) {
    unsigned char *m;
    struct ifreq card = {.ifr_name = "eth0", .ifr_hwaddr = {.sa_family = ARPHRD_ETHER}};
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0 || up(s, "lo")) return fail("cannot start the loopback device");
    m = (unsigned char *)card.ifr_hwaddr.sa_data;
    if (*mac && (sscanf(mac, "%2hhx:%2hhx:%2hhx:%2hhx:%2hhx:%2hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5)
                 != 6 || ioctl(s, SIOCSIFHWADDR, &card))) return fail(mac);
    char *slash = strchr(address, '/');
    int bits = slash ? atoi(slash + 1) : 32;
    struct in_addr own, way;
    if (*address) {
        if (slash) *slash = 0;
        in_addr_t mask = bits ? htonl(~0u << (32 - bits)) : 0;
        if (!inet_aton(address, &own) || set_address(s, SIOCSIFADDR, own.s_addr) ||
            set_address(s, SIOCSIFNETMASK, mask) || set_address(s, SIOCSIFBRDADDR, own.s_addr | ~mask) ||
            up(s, "eth0")) return fail(address);
    }
    if (*gateway) {
        struct rtentry route = {.rt_dst = ipv4(0), .rt_genmask = ipv4(0), .rt_flags = RTF_UP | RTF_GATEWAY};
        if (!inet_aton(gateway, &way)) return fail(gateway);
        route.rt_gateway = ipv4(way.s_addr);
        if (ioctl(s, SIOCADDRT, &route)) return fail(gateway);
    }
    close(s);
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 2) return 2;
    if (argc == 2 ? wait_for(argv[1]) : use_entropy()) return 1;
    return read_identity() || take_name() || own_key() || join_network() ? 1 : 0;
}
