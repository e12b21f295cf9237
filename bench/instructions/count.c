// count: a plugin for QEMU (TCG) that counts the instructions of each virtual CPU, in user mode and in the kernel.
//
// When the guest executes the instruction MARK (see client.c), the plugin appends a line to the file of its argument
// out=FILE: "USER KERNEL" for each CPU, starting with CPU 0.
//
// With a second argument lines=FILE, it also finds cache lines that several of the CPUs 1 to (CPUS - 1) / 2 write in user
// mode between the first and the second mark: they must run threads of one process. Each line of FILE describes one of
// them: "ADDRESS CPUS WRITES CODE", where WRITES excludes those of the CPU that writes most often, and CODE is the address of
// the last instruction that wrote to the line after another CPU.
//
// QEMU must emulate all CPUs on one thread (thread=single).
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Declarations of the plugin API, version 1 (QEMU 4.2 and later), whose header Debian does not package.
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
  const char *target_name;
  struct {
    int min, current;
  } version;
  bool system_emulation;
  struct {
    int smp_vcpus, max_vcpus;
  } system;
} qemu_info_t;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_W = 2 };
typedef uint32_t qemu_plugin_meminfo_t;
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *),
                                          enum qemu_plugin_cb_flags, void *);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *),
                                            enum qemu_plugin_cb_flags, void *);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
                                      void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *),
                                      enum qemu_plugin_cb_flags, enum qemu_plugin_mem_rw, void *);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { MAX_CPUS = 64, MAX_WORKERS = MAX_CPUS / 2, LINE_BYTES = 64, TABLE_SIZE = 1 << 20 };
// The instruction that client.c calls MARK.
static const unsigned char mark_code[] = {0x0f, 0x1f, 0x80, 'l', 'e', 'n', 'a'};

static uint64_t counts[MAX_CPUS][2];
static unsigned cpus;
static FILE *out, *lines_out;
static int marks;

// Cache lines written between the marks: a hash table with open addressing.
static struct line {
  uint64_t address, cpus, code;
  uint32_t writes[MAX_WORKERS];
  unsigned last_cpu;
} lines[TABLE_SIZE];

// `block` is the number of instructions of the block, times two, plus one for the kernel.
static void count_block(unsigned cpu, void *block) { counts[cpu][(uintptr_t)block & 1] += (uintptr_t)block >> 1; }

static void on_write(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void *code) {
  if (marks != 1 || cpu < 1 || cpu > (cpus - 1) / 2) return;
  // The plugin interface also reports the loads of instructions that load and store, and accesses of the kernel after an
  // instruction that enters it.
  if (!qemu_plugin_mem_is_store(info) || address >> 63) return;
  address /= LINE_BYTES;
  size_t i = address * UINT64_C(0x9e3779b97f4a7c15) >> 44;
  while (lines[i].cpus && lines[i].address != address) i = (i + 1) % TABLE_SIZE;
  struct line *line = &lines[i];
  if (line->cpus && line->last_cpu != cpu) line->code = (uintptr_t)code;
  line->address = address;
  line->cpus |= UINT64_C(1) << cpu;
  line->writes[cpu]++;
  line->last_cpu = cpu;
}

static void report_lines(void) {
  for (struct line *line = lines; line < lines + TABLE_SIZE; line++) {
    if (!(line->cpus & (line->cpus - 1))) continue;
    uint64_t total = 0, max = 0;
    for (int cpu = 0; cpu < MAX_WORKERS; cpu++) {
      total += line->writes[cpu];
      if (line->writes[cpu] > max) max = line->writes[cpu];
    }
    fprintf(lines_out, "%" PRIx64 " %d %" PRIu64 " %" PRIx64 "\n", line->address * LINE_BYTES,
            __builtin_popcountll(line->cpus), total - max, line->code);
  }
  fflush(lines_out);
}

static void mark(unsigned cpu, void *unused) {
  if (++marks == 2 && lines_out) report_lines();
  for (unsigned i = 0; i < cpus; i++) fprintf(out, "%" PRIu64 " %" PRIu64 " ", counts[i][0], counts[i][1]);
  fputc('\n', out);
  fflush(out);
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
  size_t length = qemu_plugin_tb_n_insns(block);
  uintptr_t is_kernel = qemu_plugin_tb_vaddr(block) >> 63;
  qemu_plugin_register_vcpu_tb_exec_cb(block, count_block, QEMU_PLUGIN_CB_NO_REGS, (void *)(length << 1 | is_kernel));
  for (size_t i = 0; i < length; i++) {
    struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
    if (lines_out && !is_kernel)
      qemu_plugin_register_vcpu_mem_cb(instruction, on_write, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_W,
                                       (void *)(uintptr_t)qemu_plugin_insn_vaddr(instruction));
    if (qemu_plugin_insn_size(instruction) == sizeof mark_code &&
        !memcmp(qemu_plugin_insn_data(instruction), mark_code, sizeof mark_code))
      qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark, QEMU_PLUGIN_CB_NO_REGS, NULL);
  }
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int count,
                                                               char **arguments) {
  cpus = info->system.smp_vcpus;
  for (int i = 0; i < count; i++) {
    if (!strncmp(arguments[i], "out=", 4)) out = fopen(arguments[i] + 4, "w");
    if (!strncmp(arguments[i], "lines=", 6) && !(lines_out = fopen(arguments[i] + 6, "w"))) return 1;
  }
  if (!out || cpus > MAX_CPUS) return 1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
  return 0;
}
