/* backfill-root ROOT COMMAND [ARG...]: run a command in a root file system of the caller's own.
 *
 * It is nobody's helper: it runs as the caller, has no bits that make it anybody else, and asks the kernel
 * for nothing that the caller could not ask for himself. He gets a user namespace in which he stays who he
 * is, and a mount namespace in which ROOT, read-only, is the root. As the first line of a job's script
 * (#!/usr/local/bin/backfill-root ROOT) it runs the rest of the script there.
 *
 * What a site says stands in /etc/backfill/own-root: how many MB a root may have, and below that paths
 * that are seen inside as well. Without that file none is run. A root that anybody else could have a say
 * in is refused, as are programs in it that run as their owner. Each refusal is one sentence, with status
 * 125, and then nothing was run.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RULES
#define RULES "/etc/backfill/own-root"
#endif

enum { REFUSED = 125, ENTRY_BYTES = 1024, DEEPEST = 256, MOST_RULES = 16384 };
static const char *const ALWAYS[] = {"dev", "proc", "sys", "tmp"};

static void refuse(const char *said, ...) {
    va_list rest;
    va_start(rest, said);
    fprintf(stderr, "backfill-root: ");
    vfprintf(stderr, said, rest);
    fprintf(stderr, "\n");
    exit(REFUSED);
}

/* --- what the site says ----------------------------------------------------------------------- */

struct rules {
    unsigned long long most_bytes;
    char text[MOST_RULES + 1];
    char *paths; /* one a line */
};

static void read_rules(struct rules *rules) {
    int file = open(RULES, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat seen;
    if (file < 0) refuse("this node runs no root file system of a user's own (own_root_mb of its image is 0)");
    if (fstat(file, &seen) || !S_ISREG(seen.st_mode) || seen.st_uid != 0 || (seen.st_mode & (S_IWGRP | S_IWOTH)))
        refuse("%s is not root's alone to write", RULES);
    ssize_t length = read(file, rules->text, MOST_RULES);
    close(file);
    char *end = rules->text;
    unsigned long long most_mb = length > 0 ? strtoull(rules->text, &end, 10) : 0;
    if (!most_mb || *end != '\n') refuse("%s does not begin with a number of MB", RULES);
    rules->most_bytes = most_mb << 20;
    rules->paths = end + 1;
}

/* --- what is in the tree ---------------------------------------------------------------------- */

struct walk {
    const char *root;
    uid_t owner;
    dev_t device;
    unsigned long long bytes, most_bytes;
    void *linked; /* inodes with several names, each counted once */
    char path[PATH_MAX];
};

static int by_inode(const void *one, const void *other) {
    ino_t a = *(const ino_t *)one, b = *(const ino_t *)other;
    return (a > b) - (a < b);
}

static int counted_before(struct walk *walk, ino_t inode) {
    ino_t *key = malloc(sizeof *key);
    if (!key) refuse("out of memory");
    *key = inode;
    ino_t **found = tsearch(key, &walk->linked, by_inode);
    if (!found) refuse("out of memory");
    if (*found == key) return 0;
    free(key);
    return 1;
}

static void check(struct walk *walk, const struct stat *seen) {
    mode_t mode = seen->st_mode;
    if (seen->st_uid != walk->owner)
        refuse("%s%s belongs to user %u, not to you", walk->root, walk->path, (unsigned)seen->st_uid);
    if (seen->st_dev != walk->device)
        refuse("%s%s is on another file system than the rest of it", walk->root, walk->path);
    if (S_ISCHR(mode) || S_ISBLK(mode)) refuse("%s%s is a device", walk->root, walk->path);
    if (S_ISREG(mode) && (mode & (S_ISUID | S_ISGID)))
        refuse("%s%s would run as its owner or group: chmod ug-s", walk->root, walk->path);
    /* With an access list the group's bits are what it allows anybody at most. */
    if (!S_ISLNK(mode) && (mode & (S_IWGRP | S_IWOTH)))
        refuse("%s%s can be written by others: chmod go-w", walk->root, walk->path);
    if (seen->st_nlink > 1 && !S_ISDIR(mode) && counted_before(walk, seen->st_ino)) return;
    walk->bytes += ENTRY_BYTES + (S_ISREG(mode) ? (unsigned long long)seen->st_size : 0);
    if (walk->bytes > walk->most_bytes)
        refuse("%s is larger than %llu MB, the most that this node's image allows", walk->root,
               walk->most_bytes >> 20);
}

static void look_into(struct walk *walk, int directory, int depth) {
    DIR *entries = fdopendir(directory);
    size_t length = strlen(walk->path);
    if (!entries || depth > DEEPEST) refuse("%s%s cannot be read", walk->root, walk->path);
    for (struct dirent *entry; errno = 0, (entry = readdir(entries));) {
        struct stat seen;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (snprintf(walk->path + length, sizeof walk->path - length, "/%s", entry->d_name)
            >= (int)(sizeof walk->path - length))
            refuse("%s has a path that is too long", walk->root);
        if (fstatat(directory, entry->d_name, &seen, AT_SYMLINK_NOFOLLOW))
            refuse("%s%s: %s", walk->root, walk->path, strerror(errno));
        check(walk, &seen);
        if (S_ISDIR(seen.st_mode)) {
            int below = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (below < 0) refuse("%s%s: %s", walk->root, walk->path, strerror(errno));
            look_into(walk, below, depth + 1);
        }
        walk->path[length] = 0;
    }
    if (errno) refuse("%s%s: %s", walk->root, walk->path, strerror(errno));
    closedir(entries);
}

static void check_tree(const char *root, const struct rules *rules, struct stat *seen) {
    if (root[0] != '/') refuse("%s: name the root by its whole path", root);
    int tree = open(root, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (tree < 0 || fstat(tree, seen)) refuse("%s: %s", root, strerror(errno));
    if (S_ISLNK(seen->st_mode)) refuse("%s is a symbolic link: name the directory itself", root);
    if (!S_ISDIR(seen->st_mode)) refuse("%s is not a directory", root);
    struct walk walk = {.root = root, .owner = getuid(), .device = seen->st_dev, .most_bytes = rules->most_bytes};
    check(&walk, seen);
    int top = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0) refuse("%s: %s", root, strerror(errno));
    look_into(&walk, top, 0);
    close(tree);
}

/* --- the namespaces --------------------------------------------------------------------------- */

static void write_all(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text))
        refuse("cannot write %s: %s", path, strerror(errno));
    close(file);
}

static void enter_namespaces(void) {
    char map[64];
    uid_t user = getuid();
    gid_t group = getgid();
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        refuse("this node's kernel gives users no namespaces: %s", strerror(errno));
    write_all("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%u %u 1\n", (unsigned)group, (unsigned)group);
    write_all("/proc/self/gid_map", map);
    snprintf(map, sizeof map, "%u %u 1\n", (unsigned)user, (unsigned)user);
    write_all("/proc/self/uid_map", map);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) refuse("mounts cannot be made private: %s", strerror(errno));
}

/* What a mount forbids already stays forbidden, or the kernel refuses the change. */
static unsigned long kept_flags(const char *path) {
    static const struct { unsigned long seen, flag; } EACH[] = {
        {ST_NOEXEC, MS_NOEXEC}, {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME},
    };
    struct statvfs found;
    unsigned long flags = 0;
    if (statvfs(path, &found)) refuse("%s: %s", path, strerror(errno));
    for (size_t i = 0; i < sizeof EACH / sizeof *EACH; i++)
        if (found.f_flag & EACH[i].seen) flags |= EACH[i].flag;
    return flags;
}

static int same(const struct stat *one, const struct stat *other) {
    return one->st_dev == other->st_dev && one->st_ino == other->st_ino;
}

/* Afterwards we are in it. It is opened anew: what was open before belongs to the mounts outside. */
static void mount_root(const char *root, const struct stat *seen) {
    char source[64];
    struct stat there;
    int tree = open(root, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (tree < 0 || fstat(tree, &there) || !same(&there, seen)) refuse("%s was exchanged meanwhile", root);
    snprintf(source, sizeof source, "/proc/self/fd/%d", tree);
    if (mount(source, root, NULL, MS_BIND, NULL)) refuse("%s cannot be mounted: %s", root, strerror(errno));
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | kept_flags(root);
    if (mount(NULL, root, NULL, flags, NULL)) refuse("%s cannot be made read-only: %s", root, strerror(errno));
    if (chdir(root) || stat(".", &there)) refuse("%s: %s", root, strerror(errno));
    if (!same(&there, seen)) refuse("%s was exchanged meanwhile", root);
    close(tree);
}

/* A directory of the tree, by a path without / at its beginning; links in it lead nowhere. */
static int open_inside(const char *root, const char *path) {
    const char *whole = path;
    int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char part[NAME_MAX + 1];
    while (*path && here >= 0) {
        size_t length = strcspn(path, "/");
        if (length > NAME_MAX || (length == 2 && !strncmp(path, "..", 2))) refuse("%s: no such path inside", path);
        memcpy(part, path, length);
        part[length] = 0;
        int next = length ? openat(here, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : dup(here);
        close(here);
        here = next;
        path += length + (path[length] == '/');
    }
    if (here < 0 && errno == ENOENT) return -1;
    if (here < 0)
        refuse("%s/%s has to be a plain directory all the way, no link and no file: %s", root, whole, strerror(errno));
    return here;
}

static void show_inside(const char *root, const char *path) {
    char source[PATH_MAX], target[64];
    int there = open_inside(root, path);
    if (there < 0) refuse("%s has no directory %s: make an empty one", root, path);
    snprintf(source, sizeof source, "/%s", path);
    snprintf(target, sizeof target, "/proc/self/fd/%d", there);
    if (mount(source, target, NULL, MS_BIND | MS_REC, NULL))
        refuse("/%s cannot be seen in %s: %s", path, root, strerror(errno));
    close(there);
}

static void show_all(const char *root, struct rules *rules) {
    for (size_t i = 0; i < sizeof ALWAYS / sizeof *ALWAYS; i++) show_inside(root, ALWAYS[i]);
    for (char *rest = rules->paths, *path; (path = strsep(&rest, "\n"));)
        if (path[0] == '/' && path[1]) show_inside(root, path + 1);
}

static void change_root(const char *root) {
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        refuse("%s cannot become the root: %s", root, strerror(errno));
}

/* --- the command ------------------------------------------------------------------------------ */

/* An open file if it is a script whose first line names this program; -1 otherwise. */
static int own_script(const char *command) {
    char line[PATH_MAX];
    int file = open(command, O_RDONLY);
    if (file < 0) return -1;
    ssize_t length = read(file, line, sizeof line - 1);
    line[length > 0 ? length : 0] = 0;
    line[strcspn(line, "\n")] = 0;
    const char *name = strstr(line, "backfill-root");
    if (!strncmp(line, "#!", 2) && name && (name[-1] == '/' || name[-1] == ' ') && lseek(file, 0, SEEK_SET) == 0)
        return file;
    close(file);
    return -1;
}

int main(int count, char **words) {
    struct rules rules = {0};
    struct stat seen;
    char before[PATH_MAX], script[64];
    if (count < 3) refuse("say backfill-root ROOT COMMAND [ARG...]");
    if (getuid() == 0 || geteuid() != getuid() || getegid() != getgid())
        refuse("it is for users alone: root has no root file system of its own here");
    const char *root = words[1];
    char **command = words + 2;
    read_rules(&rules);
    check_tree(root, &rules, &seen);
    int file = own_script(command[0]);
    const char *here = getcwd(before, sizeof before) ? before : "/";
    enter_namespaces();
    mount_root(root, &seen);
    show_all(root, &rules);
    change_root(root);
    if (chdir(here) && chdir("/")) refuse("%s: %s", root, strerror(errno));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) refuse("the kernel lets privileges in: %s", strerror(errno));
    if (file >= 0) {
        snprintf(script, sizeof script, "/proc/self/fd/%d", file);
        words[1] = access("/bin/bash", X_OK) ? "/bin/sh" : "/bin/bash";
        command[0] = script;
        command = words + 1;
    }
    execvp(command[0], command);
    refuse("%s cannot be run in %s: %s", command[0], root, strerror(errno));
}
