/* backfill-stated [LIST]
 *
 * Compares this guest with what its Salt states come to. The list was made at the master for this very
 * node (backfill/drivers/salt/stated.py) and came with its seed; one thing per line, a file's content
 * after its line, and `end` last:
 *   file MODE USER GROUP LENGTH PATH    LENGTH - : whatever its content; MODE, USER, GROUP - : any
 *   folder MODE USER GROUP PATH
 *   mount SOURCE rw|ro PATH
 *   group GID NAME
 *   user UID GID HOME SHELL NAME
 *   run NAME                            a state whose outcome cannot be seen from outside
 * Prints one sentence; status 0 when all of it holds, 1 when something does not, 2 for a bad list, 3 when
 * it may be that only a mount is missing which has not been made yet.
 */
#include <errno.h>
#include <grp.h>
#include <mntent.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int told; /* the first thing that is not so is told, and no other */

static int no(const char *what, const char *why) {
    if (!told++) printf("%s %s\n", what, why);
    return 1;
}

/* --- people: /etc/passwd and /etc/group as they stand; a static program has no name services ---- */

static int user_of(const char *name, struct passwd *found) {
    FILE *all = fopen("/etc/passwd", "r");
    struct passwd *one = NULL;
    while (all && (one = fgetpwent(all)) && strcmp(one->pw_name, name)) {}
    if (one) *found = *one;
    if (all) fclose(all);
    return one != NULL;
}

static int group_of(const char *name, gid_t *gid) {
    FILE *all = fopen("/etc/group", "r");
    struct group *one = NULL;
    while (all && (one = fgetgrent(all)) && strcmp(one->gr_name, name)) {}
    if (one) *gid = one->gr_gid;
    if (all) fclose(all);
    return one != NULL;
}

static int group(const char *line) {
    char name[64];
    unsigned wanted;
    gid_t gid;
    if (sscanf(line, "%u %63s", &wanted, name) != 2) return 2;
    if (!group_of(name, &gid)) return no(name, "is no group here yet");
    return gid == wanted ? 0 : no(name, "is a group with another number");
}

static int user(const char *line) {
    char name[64], home[256], shell[256];
    unsigned uid, gid;
    struct passwd found;
    if (sscanf(line, "%u %u %255s %255s %63s", &uid, &gid, home, shell, name) != 5) return 2;
    if (!user_of(name, &found)) return no(name, "is no user here yet");
    int same = found.pw_uid == uid && found.pw_gid == gid && !strcmp(found.pw_dir, home) && !strcmp(found.pw_shell, shell);
    return same ? 0 : no(name, "is a user with another number, group, home or shell");
}

/* --- files and mounts ------------------------------------------------------------------------- */

static int owned(const char *path, const struct stat *is, const char *mode, const char *owner, const char *group) {
    struct passwd who;
    gid_t gid;
    if (*mode != '-' && strtoul(mode, NULL, 8) != (is->st_mode & 07777)) return no(path, "has another mode");
    if (*owner != '-' && (!user_of(owner, &who) || who.pw_uid != is->st_uid)) return no(path, "has another owner");
    if (*group != '-' && (!group_of(group, &gid) || gid != is->st_gid)) return no(path, "has another group");
    return 0;
}

static int folder(const char *line) {
    char mode[16], owner[64], group[64], path[512];
    struct stat is;
    if (sscanf(line, "%15s %63s %63s %511[^\n]", mode, owner, group, path) != 4) return 2;
    if (stat(path, &is)) return no(path, strerror(errno));
    return S_ISDIR(is.st_mode) ? owned(path, &is, mode, owner, group) : no(path, "is no directory");
}

static int file(const char *line, FILE *list) {
    char mode[16], owner[64], group[64], length[16], path[512];
    struct stat is;
    if (sscanf(line, "%15s %63s %63s %15s %511[^\n]", mode, owner, group, length, path) != 5) return 2;
    long left = *length == '-' ? -1 : atol(length);
    FILE *ours = fopen(path, "r");
    int why = errno, same = ours != NULL && !fstat(fileno(ours), &is) && (left < 0 || is.st_size == left);
    for (int wanted; left > 0 && (wanted = getc(list)) != EOF; left--)
        if (same && getc(ours) != wanted) same = 0; /* read on: the next line comes after the content */
    if (left == 0) getc(list);
    if (ours) fclose(ours);
    if (left > 0) return 2;
    if (!ours) return no(path, strerror(why));
    return same ? owned(path, &is, mode, owner, group) : no(path, "differs");
}

static int mounted(const char *line) {
    char source[512], way[4], path[512];
    if (sscanf(line, "%511s %3s %511[^\n]", source, way, path) != 3) return 2;
    FILE *all = setmntent("/proc/self/mounts", "r");
    struct mntent *one;
    int found = 0;
    while (all && (one = getmntent(all)))
        if (!strcmp(one->mnt_dir, path)) /* the last is on top */
            found = !strcmp(one->mnt_fsname, source) && hasmntopt(one, way);
    if (all) endmntent(all);
    return found ? 0 : no(path, "is not mounted as it shall be");
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "/etc/backfill/stated";
    char line[2048], kind[16];
    int count = 0, bad = 0, at = 0, late = 0, sure = 0;
    FILE *list = fopen(path, "r");
    if (!list) return no("its states have not succeeded yet, and there is no list of what they come to:", path);
    for (; bad < 2 && fgets(line, sizeof line, list); count++) {
        if (!strcmp(line, "end\n")) {
            if (!told) printf("ok %d things are as the states say\n", count);
            return !told ? 0 : late && !sure ? 3 : 1;
        }
        bad = sscanf(line, "%15s %n", kind, &at) != 1 ? 2
            : !strcmp(kind, "file") ? file(line + at, list)
            : !strcmp(kind, "folder") ? folder(line + at)
            : !strcmp(kind, "mount") ? mounted(line + at)
            : !strcmp(kind, "group") ? group(line + at)
            : !strcmp(kind, "user") ? user(line + at)
            : !strcmp(kind, "run") ? no("its states have not succeeded yet, and only a run proves", strtok(line + at, "\n"))
            : 2;
        /* Files and folders may be what the mount brings. */
        late |= bad && !strcmp(kind, "mount");
        sure |= bad && strchr("gur", *kind);
    }
    printf("%s is no whole list of what the states come to: thing %d\n", path, count);
    return 2;
}
