/* hold.so, preloaded: everything up to a program's main is done in a parent of instant clones.
 *
 * It stops a program where BACKFILL_HOLD is set; the program's children never see any of this.
 * Loading a program and its libraries is the same for all clones, but without KVM each of them would
 * translate the code for it anew. So a parent starts munged and slurmd and stops them here, before
 * their own first instruction: they have drawn no random number, read no key and know no name. A clone
 * continues them when it has an identity. BACKFILL_HOLD names a file that then holds the arguments,
 * each ended by a zero byte; where there is none, its own stay. A program with hwloc finds the machine,
 * which is the same for all clones, described in a file instead of looking for it in /sys and /proc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256, LENGTH = 65536 };
static const char MACHINE[] = "/run/hwloc.xml";
typedef int Main(int, char **, char **);
typedef int Start(Main *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static char *arguments[MOST + 1];
static char text[LENGTH];

static int read_arguments(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    int count = 1;
    for (char *word = text; word < text + length && count < MOST; word += strlen(word) + 1)
        arguments[count++] = word;
    fclose(file);
    return count;
}

/* Where anything of it fails the program looks by itself, as ever. */
static void describe_machine(void) {
    int (*init)(void **) = (int (*)(void **))dlsym(RTLD_DEFAULT, "hwloc_topology_init");
    int (*load)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "hwloc_topology_load");
    int (*write)(void *, const char *, unsigned long) =
        (int (*)(void *, const char *, unsigned long))dlsym(RTLD_DEFAULT, "hwloc_topology_export_xml");
    void (*destroy)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "hwloc_topology_destroy");
    void *topology;
    if (!init || !load || !write || !destroy || init(&topology)) return;
    if (!load(topology) && !write(topology, MACHINE, 0)) {
        setenv("HWLOC_XMLFILE", MACHINE, 1);
        setenv("HWLOC_THISSYSTEM", "1", 1); /* so that binding to CPUs goes on working */
    }
    destroy(topology);
}

int __libc_start_main(Main *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*unload)(void), void *stack) {
    Start *start = (Start *)dlsym(RTLD_NEXT, "__libc_start_main");
    const char *path = getenv("BACKFILL_HOLD");
    int count = 0;
    if (!start) abort();
    if (path) {
        describe_machine();
        raise(SIGSTOP);
        /* The shell starts what it does not wait for deaf to these; a slurmd's jobs would be, too. */
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        count = read_arguments(path);
    }
    if (count) {
        arguments[0] = argv[0];
        argc = count;
        argv = arguments;
    }
    unsetenv("BACKFILL_HOLD");
    unsetenv("LD_PRELOAD");
    return start(main, argc, argv, init, fini, unload, stack);
}
