/* Options of sbatch, salloc and srun by which a job asks for machines of its own.
 *
 * Each value is checked here and refused in one sentence. What is asked for goes into the job's control
 * environment as BACKFILL_VM=per_node=2,cpus=4,..., the pairs of core/model/machine_request.py, where
 * job_submit.lua reads it; there they are checked against one another and against the job, since what a
 * plugin says that is `optional` cannot stop a job. On nodes it does nothing.
 *
 * build.py compiles it for one release of Slurm, with SLURM_VERSION_NUMBER: Slurm refuses a plugin of
 * another one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in slurm/spank.h, from 22.05 to 26.05. Its own header is seldom where users log in. */
typedef struct spank_handle *spank_t;
typedef int (*spank_opt_cb_f)(int val, const char *optarg, int remote);
struct spank_option {
    char *name;
    char *arginfo;
    char *usage;
    int has_arg;
    int val;
    spank_opt_cb_f cb;
};
enum { S_CTX_LOCAL = 1, S_CTX_ALLOCATOR = 3 };
extern int spank_context(void);
extern int spank_option_register(spank_t spank, struct spank_option *option);
extern int spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite);
extern int spank_job_control_unsetenv(spank_t spank, const char *name);
extern void slurm_error(const char *format, ...);

const char plugin_name[] = "backfill_vm";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

enum { NONE, REQUIRED, OPTIONAL };
enum { PER_NODE, CPUS, MEM, DISK, IMAGE, NETWORK, SRIOV, IVSHMEM, NUM_IVSHMEM, IVSHM_SZ, PLACE, OPTIONS };
enum { MOST_REGIONS = 16, USUAL_REGION_MB = 256, LONGEST_NAME = 64 };
#define LARGEST_MB (1LL << 30)

static int asked[OPTIONS];
static long long numbers[OPTIONS];
static char names[OPTIONS][LONGEST_NAME + 1];
static long long regions_mb[MOST_REGIONS];
static int regions;

/* A number of 1 to `most`, at most nine digits; 0: it is none. */
static long long number(const char *text, size_t length, long long most) {
    long long found = 0;
    if (!length || length > 9) return 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        found = found * 10 + text[i] - '0';
    }
    return found <= most ? found : 0;
}

/* 2048, 2G, 512MB as MB; `usual` is the unit of a bare number; 0: it is no size. */
static long long size_mb(const char *text, size_t length, char usual) {
    long long found;
    char unit = usual;
    if (length && (text[length - 1] == 'B' || text[length - 1] == 'b')) length--;
    if (length && strchr("KMGTkmgt", text[length - 1])) unit = text[--length] & ~0x20;
    found = number(text, length, 999999999);
    found = unit == 'K' ? found / 1024 : unit == 'G' ? found * 1024 : unit == 'T' ? found * 1024 * 1024 : found;
    return found <= LARGEST_MB ? found : 0;
}

static int name(int which, const char *text) {
    static const char first[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    static const char more[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t length = strlen(text);
    if (!length || length > LONGEST_NAME || !strchr(first, text[0]) || strspn(text, more) != length) return 0;
    strcpy(names[which], text);
    return 1;
}

/* Sizes of 256 or 256,128,...: powers of two. */
static int sizes(const char *text) {
    for (regions = 0; regions < MOST_REGIONS;) {
        size_t length = strcspn(text, ",+");
        long long size = size_mb(text, length, 'M');
        if (!size || (size & (size - 1))) return 0;
        regions_mb[regions++] = size;
        if (!text[length]) return 1;
        text += length + 1;
    }
    return 0;
}

static int read_value(int which, const char *text) {
    switch (which) {
    case PER_NODE: return (numbers[which] = number(text, strlen(text), 64)) > 0;
    case CPUS: return (numbers[which] = number(text, strlen(text), 4096)) > 0;
    case MEM: return (numbers[which] = size_mb(text, strlen(text), 'M')) > 0;
    case DISK: return (numbers[which] = size_mb(text, strlen(text), 'G')) > 0;
    case SRIOV: return (numbers[which] = number(text, strlen(text), 64)) > 0;
    case NUM_IVSHMEM: return (numbers[which] = number(text, strlen(text), MOST_REGIONS)) > 0;
    case IVSHM_SZ: return sizes(text);
    case IVSHMEM: return 1;
    case PLACE: return (!strcmp(text, "together") || !strcmp(text, "spread")) && name(which, text);
    default: return name(which, text);
    }
}

static int option(int which, const char *text, int remote);

static struct spank_option options[OPTIONS] = {
    {"vm-per-node", "number", "machines of its own on each node (backfill)", REQUIRED, PER_NODE, option},
    {"vcpu-per-vm", "number", "CPUs of each of its machines (backfill)", REQUIRED, CPUS, option},
    {"mem-per-vm", "size", "memory of each of its machines, MB (backfill)", REQUIRED, MEM, option},
    {"disk-size", "size", "disk of each of its machines, GB (backfill)", REQUIRED, DISK, option},
    {"vm-image", "name", "image of its machines (backfill)", REQUIRED, IMAGE, option},
    {"vm-network", "name", "network of its machines (backfill)", REQUIRED, NETWORK, option},
    {"sriov", "number", "virtual functions of each of its machines (backfill)", OPTIONAL, SRIOV, option},
    {"ivshmem", NULL, "its machines on one host share memory (backfill)", NONE, IVSHMEM, option},
    {"num-ivshmem", "number", "regions of shared memory of each of them (backfill)", REQUIRED, NUM_IVSHMEM, option},
    {"ivshm-sz", "size", "size of these regions, MB (backfill)", REQUIRED, IVSHM_SZ, option},
    {"vm-place", "where", "its machines together on one host or spread (backfill)", REQUIRED, PLACE, option},
};
static const char *allowed[OPTIONS] = {
    "a number from 1 to 64",
    "a number from 1 to 4096",
    "a size such as 2048 (MB) or 2G",
    "a size such as 20 (GB) or 500M",
    "a name of letters, digits and . _ -",
    "a name of letters, digits and . _ -",
    "a number from 1 to 64",
    "",
    "a number from 1 to 16",
    "sizes that are powers of two such as 256 or 256,128 (MB), 16 at most",
    "together or spread",
};

static int option(int which, const char *text, int remote) {
    if (remote) return 0;
    if (which == SRIOV && !text) text = "1";
    if (!read_value(which, text ? text : "")) {
        slurm_error("--%s=%.60s: use %s", options[which].name, text ? text : "", allowed[which]);
        return -1;
    }
    asked[which] = 1;
    return 0;
}

int slurm_spank_init(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    for (int i = 0; i < OPTIONS; i++) spank_option_register(spank, &options[i]);
    return 0;
}

/* What does not go together is told to job_submit.lua, which can refuse the job. */
static size_t put_regions(char *text, size_t at, size_t room) {
    int count = asked[NUM_IVSHMEM] ? (int)numbers[NUM_IVSHMEM] : regions ? regions : 1;
    if (!asked[IVSHMEM]) {
        if (asked[NUM_IVSHMEM] || asked[IVSHM_SZ]) at += snprintf(text + at, room - at, "needs=ivshmem,");
        return at;
    }
    if (regions > 1 && regions != count) return at + snprintf(text + at, room - at, "needs=ivshm-sz,");
    at += snprintf(text + at, room - at, "ivshmem=");
    for (int i = 0; i < count; i++) {
        long long size = regions > 1 ? regions_mb[i] : regions ? regions_mb[0] : USUAL_REGION_MB;
        at += snprintf(text + at, room - at, "%s%lld", i ? "+" : "", size);
    }
    return at + snprintf(text + at, room - at, ",");
}

/* sbatch, salloc and srun read the options of a heterogeneous job component by component, and call this
 * after each (22.05 to 26.05). What one asked for is not what the next one asks for, and what stands in the
 * job's control environment stays there.
 */
int slurm_spank_init_post_opt(spank_t spank, int count, char **words) {
    static const char *keys[OPTIONS] = {"per_node", "cpus", "mem", "disk", "image", "network", "sriov"};
    char text[1024] = "";
    size_t at = 0, room = sizeof text;
    int context = spank_context();

    (void)count;
    (void)words;
    if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR) return 0;
    for (int i = PER_NODE; i <= SRIOV; i++) {
        if (!asked[i]) continue;
        if (i == IMAGE || i == NETWORK) at += snprintf(text + at, room - at, "%s=%s,", keys[i], names[i]);
        else if (i == DISK && numbers[i] % 1024) at += snprintf(text + at, room - at, "disk=%lldM,", numbers[i]);
        else at += snprintf(text + at, room - at, "%s=%lld,", keys[i], i == DISK ? numbers[i] / 1024 : numbers[i]);
    }
    at = put_regions(text, at, room);
    if (asked[PLACE]) at += snprintf(text + at, room - at, "place=%s,", names[PLACE]);
    memset(asked, 0, sizeof asked);
    regions = 0;
    if (!at) {
        spank_job_control_unsetenv(spank, "BACKFILL_VM");
        return 0;
    }
    text[at - 1] = 0;
    if (spank_job_control_setenv(spank, "BACKFILL_VM", text, 1)) {
        slurm_error("the options for machines of its own cannot be given to the job");
        return -1;
    }
    return 0;
}
