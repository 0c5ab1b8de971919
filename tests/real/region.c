/*
 * region SIZE_MB NUMBER: the two ranks of a job talk through one of the regions of memory that they share.
 *
 * Rank 0 writes words that follow from the job's id over all of it, rank 1 checks every one of them and
 * writes others, which rank 0 checks. Whoever cannot map it, or finds another size, ends with status 1.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile uint32_t *memory;
static uint32_t words, job;

static uint32_t word(uint32_t place, uint32_t turn)
{
	return (place * 2654435761u) ^ (job << 8) ^ turn;
}

static void write_all(uint32_t turn)
{
	for (uint32_t i = 1; i < words; i += 97)
		memory[i] = word(i, turn);
	__sync_synchronize();
	memory[0] = job << 8 | turn;
}

static int await_all(uint32_t turn)
{
	while (memory[0] != (job << 8 | turn))
		usleep(10000);
	__sync_synchronize();
	for (uint32_t i = 1; i < words; i += 97)
		if (memory[i] != word(i, turn)) {
			fprintf(stderr, "region: word %u is wrong\n", i);
			return 1;
		}
	return 0;
}

int main(int count, char **texts)
{
	const char *id = getenv("SLURM_JOB_ID"), *rank = getenv("SLURM_PROCID");
	char path[64];
	int file;
	struct stat seen;

	if (count != 3)
		return 2;
	snprintf(path, sizeof path, "/run/backfill/regions/%d", atoi(texts[2]));
	file = open(path, O_RDWR | O_CLOEXEC);
	if ( !id || !rank || file < 0 || fstat(file, &seen)) {
		perror(path);
		return 1;
	}
	if (seen.st_size != (off_t)atoi(texts[1]) << 20) {
		fprintf(stderr, "region: %s has %lld bytes\n", path, (long long)seen.st_size);
		return 1;
	}
	memory = mmap(NULL, (size_t)seen.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED) {
		perror("region: cannot map it");
		return 1;
	}
	words = (uint32_t)(seen.st_size / 4);
	job = (uint32_t)atoi(id);
	if (atoi(rank) == 0) {
		write_all(1);
		return await_all(2);
	}
	if (await_all(1))
		return 1;
	write_all(2);
	return 0;
}
