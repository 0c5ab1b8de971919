/*
 * An MPI program whose result is known beforehand: ring ROUNDS PERIOD_MS [WORDS]
 *
 * Each rank begins with a block of numbers that follow from its rank. A round mixes the block,
 * passes it to the next rank and sums all blocks over all ranks. Each rank also computes by itself,
 * without any message, what that sum has to be: one bit that was lost, doubled or changed anywhere
 * ends the program with status 1 in that very round.
 *
 * What a rank has done stands in /dev/shm/ring.JOB.RANK, in the guest's own memory: a checkpoint that
 * is put back brings it back, too. SIGUSR1 to any rank makes this round the last one of all ranks. Rank 0
 * writes one line at the end: ring RANKS ROUNDS SUM ok
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t enough;

static void hear(int signal)
{
	(void)signal;
	enough = 1;
}

static uint64_t mixed(uint64_t word, uint64_t round)
{
	word += 0x9e3779b97f4a7c15u + round;
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
	return word ^ (word >> 31);
}

static void begin(uint64_t *block, int words, int rank)
{
	for (int i = 0; i < words; i++)
		block[i] = (uint64_t)rank << 32 | (uint64_t)i;
}

static uint64_t worked(uint64_t *block, int words, uint64_t round)
{
	uint64_t sum = 0;

	for (int i = 0; i < words; i++) {
		block[i] = mixed(block[i], round);
		sum += block[i] * (2 * (uint64_t)i + 1);
	}
	return sum;
}

static void tell(int file, uint64_t round, uint64_t sum)
{
	char line[64];
	/* One line of a fixed length in one write: whoever reads finds the old one or the new one. */
	int length = snprintf(line, sizeof line, "%20llu %016llx\n", (unsigned long long)round,
			      (unsigned long long)sum);

	if (pwrite(file, line, (size_t)length, 0) != length) {
		perror("ring: cannot tell how far it is");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
}

static int progress_of(int rank)
{
	char path[128];
	const char *job = getenv("SLURM_JOB_ID");
	int file;

	snprintf(path, sizeof path, "/dev/shm/ring.%s.%d", job ? job : "0", rank);
	file = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
	if (file < 0) {
		perror(path);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return file;
}

static long number(const char *text, const char *name, long least, long most)
{
	char *end;
	long found = strtol(text, &end, 10);

	if (*text == 0 || *end != 0 || found < least || found > most) {
		fprintf(stderr, "ring: %s is %s, not a whole number from %ld to %ld\n", name, text, least, most);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	return found;
}

int main(int argc, char **argv)
{
	int rank, ranks, words, file;
	long rounds, period_ms, round = 0;
	uint64_t *mine, *next, *all, sums[2] = { 0, 0 };
	struct sigaction on_enough = { .sa_handler = hear, .sa_flags = SA_RESTART };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: ring ROUNDS PERIOD_MS [WORDS]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	rounds = number(argv[1], "ROUNDS", 1, 1000000000);
	period_ms = number(argv[2], "PERIOD_MS", 0, 3600000);
	words = (int)number(argc == 4 ? argv[3] : "1024", "WORDS", 1, 1 << 20);
	mine = calloc((size_t)words, sizeof *mine);
	next = calloc((size_t)words, sizeof *next);
	all = calloc((size_t)words * (size_t)ranks, sizeof *all);
	if (!mine || !next || !all) {
		fprintf(stderr, "ring: no memory for %d words of %d ranks\n", words, ranks);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	file = progress_of(rank);
	begin(mine, words, rank);
	for (int i = 0; i < ranks; i++)
		begin(all + (size_t)i * (size_t)words, words, i);
	sigaction(SIGUSR1, &on_enough, NULL);
	while (round < rounds && !sums[1]) {
		struct timespec rest = { period_ms / 1000, period_ms % 1000 * 1000000 };
		uint64_t parts[2] = { worked(mine, words, (uint64_t)++round), (uint64_t)enough };
		uint64_t expected = 0;

		MPI_Sendrecv(mine, words, MPI_UINT64_T, (rank + 1) % ranks, 1, next, words, MPI_UINT64_T,
			     (rank + ranks - 1) % ranks, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		memcpy(mine, next, (size_t)words * sizeof *mine);
		MPI_Allreduce(parts, sums, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < ranks; i++)
			expected += worked(all + (size_t)i * (size_t)words, words, (uint64_t)round);
		if (sums[0] != expected || memcmp(mine, all + (size_t)((rank - round % ranks + ranks) % ranks) *
						(size_t)words, (size_t)words * sizeof *mine) != 0) {
			fprintf(stderr, "ring: rank %d, round %ld: %016llx, expected %016llx\n", rank, round,
				(unsigned long long)sums[0], (unsigned long long)expected);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		tell(file, (uint64_t)round, sums[0]);
		if (period_ms)
			nanosleep(&rest, NULL);
	}
	if (rank == 0)
		printf("ring %d %ld %016llx ok\n", ranks, round, (unsigned long long)sums[0]);
	MPI_Finalize();
	return 0;
}
