// Inline-assembly operand lists of WGMMA: the accumulators of an m64nNk32 instruction are N/2 registers a thread.
//
// Inline assembly takes neither loops nor parameter packs, so the lists are grown by macros, four registers (eight
// columns) at a time. Names start at %2, behind the matrix descriptors. Only ptx/wgmma.cuh includes this file.
#pragma once

#define FP8GEMM_NAMES_8 "%2, %3, %4, %5"
#define FP8GEMM_NAMES_16 FP8GEMM_NAMES_8 ", %6, %7, %8, %9"
#define FP8GEMM_NAMES_24 FP8GEMM_NAMES_16 ", %10, %11, %12, %13"
#define FP8GEMM_NAMES_32 FP8GEMM_NAMES_24 ", %14, %15, %16, %17"
#define FP8GEMM_NAMES_40 FP8GEMM_NAMES_32 ", %18, %19, %20, %21"
#define FP8GEMM_NAMES_48 FP8GEMM_NAMES_40 ", %22, %23, %24, %25"
#define FP8GEMM_NAMES_56 FP8GEMM_NAMES_48 ", %26, %27, %28, %29"
#define FP8GEMM_NAMES_64 FP8GEMM_NAMES_56 ", %30, %31, %32, %33"
#define FP8GEMM_NAMES_72 FP8GEMM_NAMES_64 ", %34, %35, %36, %37"
#define FP8GEMM_NAMES_80 FP8GEMM_NAMES_72 ", %38, %39, %40, %41"
#define FP8GEMM_NAMES_88 FP8GEMM_NAMES_80 ", %42, %43, %44, %45"
#define FP8GEMM_NAMES_96 FP8GEMM_NAMES_88 ", %46, %47, %48, %49"
#define FP8GEMM_NAMES_104 FP8GEMM_NAMES_96 ", %50, %51, %52, %53"
#define FP8GEMM_NAMES_112 FP8GEMM_NAMES_104 ", %54, %55, %56, %57"
#define FP8GEMM_NAMES_120 FP8GEMM_NAMES_112 ", %58, %59, %60, %61"
#define FP8GEMM_NAMES_128 FP8GEMM_NAMES_120 ", %62, %63, %64, %65"
#define FP8GEMM_NAMES_136 FP8GEMM_NAMES_128 ", %66, %67, %68, %69"
#define FP8GEMM_NAMES_144 FP8GEMM_NAMES_136 ", %70, %71, %72, %73"
#define FP8GEMM_NAMES_152 FP8GEMM_NAMES_144 ", %74, %75, %76, %77"
#define FP8GEMM_NAMES_160 FP8GEMM_NAMES_152 ", %78, %79, %80, %81"
#define FP8GEMM_NAMES_168 FP8GEMM_NAMES_160 ", %82, %83, %84, %85"
#define FP8GEMM_NAMES_176 FP8GEMM_NAMES_168 ", %86, %87, %88, %89"
#define FP8GEMM_NAMES_184 FP8GEMM_NAMES_176 ", %90, %91, %92, %93"
#define FP8GEMM_NAMES_192 FP8GEMM_NAMES_184 ", %94, %95, %96, %97"

#define FP8GEMM_OPERANDS_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FP8GEMM_OPERANDS_16 FP8GEMM_OPERANDS_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define FP8GEMM_OPERANDS_24 FP8GEMM_OPERANDS_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define FP8GEMM_OPERANDS_32 FP8GEMM_OPERANDS_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define FP8GEMM_OPERANDS_40 FP8GEMM_OPERANDS_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define FP8GEMM_OPERANDS_48 FP8GEMM_OPERANDS_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define FP8GEMM_OPERANDS_56 FP8GEMM_OPERANDS_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define FP8GEMM_OPERANDS_64 FP8GEMM_OPERANDS_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define FP8GEMM_OPERANDS_72 FP8GEMM_OPERANDS_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define FP8GEMM_OPERANDS_80 FP8GEMM_OPERANDS_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define FP8GEMM_OPERANDS_88 FP8GEMM_OPERANDS_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define FP8GEMM_OPERANDS_96 FP8GEMM_OPERANDS_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define FP8GEMM_OPERANDS_104 FP8GEMM_OPERANDS_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define FP8GEMM_OPERANDS_112 FP8GEMM_OPERANDS_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define FP8GEMM_OPERANDS_120 FP8GEMM_OPERANDS_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define FP8GEMM_OPERANDS_128 FP8GEMM_OPERANDS_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define FP8GEMM_OPERANDS_136 FP8GEMM_OPERANDS_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define FP8GEMM_OPERANDS_144 FP8GEMM_OPERANDS_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define FP8GEMM_OPERANDS_152 FP8GEMM_OPERANDS_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define FP8GEMM_OPERANDS_160 FP8GEMM_OPERANDS_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define FP8GEMM_OPERANDS_168 FP8GEMM_OPERANDS_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define FP8GEMM_OPERANDS_176 FP8GEMM_OPERANDS_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define FP8GEMM_OPERANDS_184 FP8GEMM_OPERANDS_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define FP8GEMM_OPERANDS_192 FP8GEMM_OPERANDS_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
