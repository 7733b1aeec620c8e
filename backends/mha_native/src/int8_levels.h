// The levels of processors that are not x86-64: AArch64's second one multiplies bytes, for linear maps of int8 weights.
// cpu.cpp includes this file in its namespace.
#if defined(__aarch64__)
namespace dotprod { extern const Level level; }

static int level_of_processor() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) >> 20 & 1;  // ASIMDDP
#elif defined(__APPLE__)
    return 1;  // every Apple processor has it
#else
    return 0;
#endif
}
static const Level* const LEVELS[] = {&base::level, &dotprod::level};
#else
static int level_of_processor() { return 0; }
static const Level* const LEVELS[] = {&base::level};
#endif
static bool is_granted(int) { return true; }
