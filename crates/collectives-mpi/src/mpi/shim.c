/* MPI behind an ABI of our own: int, pointers and 64-bit integers only. Constants and handle types of mpi.h differ
   between Open MPI and MPICH (pointers to structs here, integers there), so they stay on this side. Every function
   returns MPI's code; 0 is success. All of them are called by one thread. */
#include <mpi.h>
#include <stdint.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits into a slot");

static uint64_t to_slot(MPI_Request request) {
  uint64_t slot = 0;
  memcpy(&slot, &request, sizeof request);
  return slot;
}

static MPI_Request from_slot(uint64_t slot) {
  MPI_Request request;
  memcpy(&request, &slot, sizeof request);
  return request;
}

/* Errors come back as codes on every communicator that a call without one is charged to. */
int bessemer_mpi_init(int *rank, int *size) {
  int there = 0, level = 0;
  int e = MPI_Initialized(&there);
  if (e) return e;
  if (there) return MPI_ERR_OTHER;
  if ((e = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level))) return e;
  if (level < MPI_THREAD_FUNNELED) return MPI_ERR_OTHER;
  if ((e = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN))) return e;
  if ((e = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN))) return e;
  if ((e = MPI_Comm_rank(MPI_COMM_WORLD, rank))) return e;
  return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int bessemer_mpi_finalize(void) { return MPI_Finalize(); }

int bessemer_mpi_isend(const void *bytes, int count, int to, int tag, uint64_t *slot) {
  MPI_Request request = MPI_REQUEST_NULL;
  int e = MPI_Isend(bytes, count, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
  *slot = to_slot(request);
  return e;
}

int bessemer_mpi_irecv(void *bytes, int count, int from, int tag, uint64_t *slot) {
  MPI_Request request = MPI_REQUEST_NULL;
  int e = MPI_Irecv(bytes, count, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
  *slot = to_slot(request);
  return e;
}

/* done: 1 when the request is over. count: bytes received, where it was a receive. */
int bessemer_mpi_test(uint64_t *slot, int *done, int *count) {
  MPI_Request request = from_slot(*slot);
  MPI_Status status;
  memset(&status, 0, sizeof status);
  *done = 0;
  *count = 0;
  int e = MPI_Test(&request, done, &status);
  *slot = to_slot(request);
  if (e || !*done) return e;
  return MPI_Get_count(&status, MPI_BYTE, count);
}

int bessemer_mpi_iprobe(int tag, int *found, int *from, int *count) {
  MPI_Status status;
  memset(&status, 0, sizeof status);
  *found = 0;
  int e = MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, found, &status);
  if (e || !*found) return e;
  *from = status.MPI_SOURCE;
  return MPI_Get_count(&status, MPI_BYTE, count);
}

/* Texts end with a zero byte within capacity. */
static void copy_text(char *to, int capacity, const char *from) {
  if (capacity <= 0) return;
  strncpy(to, from, (size_t)capacity - 1);
  to[capacity - 1] = 0;
}

int bessemer_mpi_error_text(int code, char *text, int capacity) {
  char buffer[MPI_MAX_ERROR_STRING + 1] = {0};
  int length = 0;
  int e = MPI_Error_string(code, buffer, &length);
  copy_text(text, capacity, buffer);
  return e;
}

int bessemer_mpi_library(char *text, int capacity) {
  char buffer[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {0};
  int length = 0;
  int e = MPI_Get_library_version(buffer, &length);
  copy_text(text, capacity, buffer);
  return e;
}

int bessemer_mpi_host(char *text, int capacity) {
  char buffer[MPI_MAX_PROCESSOR_NAME + 1] = {0};
  int length = 0;
  int e = MPI_Get_processor_name(buffer, &length);
  copy_text(text, capacity, buffer);
  return e;
}
