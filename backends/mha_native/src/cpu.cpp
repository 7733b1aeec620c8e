// Features of the processor, and the registers that the system saves when it switches threads.
#include <string.h>

#include "attend.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace mha {

namespace base { extern const Level level; }
#if defined(__x86_64__)
namespace avx2 { extern const Level level; }
namespace avx512 { extern const Level level; }
namespace avx512_bf16 { extern const Level level; }
namespace avx512_amx { extern const Level level; }

static unsigned long long saved_state() {  // XCR0
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (unsigned long long)high << 32 | low;
}

// Whether the system lets this process compute at a level: the tiles of AMX must be asked for.
static bool is_granted(int level) {
#if defined(SYS_arch_prctl)  // on Linux
    constexpr int TILES = 3 << 17, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    if (level == 4 && (saved_state() & TILES) == TILES)
        return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#endif
    return level < 4;
}

// The feature levels of the x86-64 psABI: v3 for avx2, v4 for avx512; then one with instructions for bfloat16, one with AMX.
static int level_of_processor() {
    unsigned a, b, c, d, b7, d7, extended;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    constexpr unsigned FMA = 1u << 12, MOVBE = 1u << 22, OSXSAVE = 1u << 27, AVX = 1u << 28, F16C = 1u << 29;
    constexpr unsigned NEEDED = FMA | MOVBE | OSXSAVE | AVX | F16C;
    if ((c & NEEDED) != NEEDED || (saved_state() & 6) != 6) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c, &d7)) return 0;
    constexpr unsigned BMI1 = 1u << 3, AVX2 = 1u << 5, BMI2 = 1u << 8, LZCNT = 1u << 5;
    if (!__get_cpuid(0x80000001, &a, &b, &extended, &d) || !(extended & LZCNT)) return 0;
    if ((b7 & (BMI1 | AVX2 | BMI2)) != (BMI1 | AVX2 | BMI2)) return 0;
    constexpr unsigned F = 1u << 16, DQ = 1u << 17, CD = 1u << 28, BW = 1u << 30, VL = 1u << 31;
    bool has_512 = (b7 & (F | DQ | CD | BW | VL)) == (F | DQ | CD | BW | VL) && (saved_state() & 0xe6) == 0xe6;
    if (!has_512) return 1;
    constexpr unsigned VNNI = 1u << 11, BF16 = 1u << 5, AMX = 1u << 22 | 1u << 24 | 1u << 25;
    if (!(c & VNNI) || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & BF16)) return 2;
    return (d7 & AMX) == AMX ? 4 : 3;
}

static const Level* const LEVELS[] = {&base::level, &avx2::level, &avx512::level, &avx512_bf16::level, &avx512_amx::level};
#else
#include "int8_levels.h"
#endif

const Level* level_named(const char* name) {
    for (int at = level_of_processor(); at >= 0; --at)
        if ((!name || !strcmp(name, LEVELS[at]->name)) && is_granted(at)) return LEVELS[at];
    return nullptr;
}

}  // namespace mha
