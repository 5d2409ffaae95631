// The switch between fibers; see fibers.h.
//
// It saves the callee-saved registers. A suspended context consists of those, on its stack, and the address at which it
// continues.

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl stand_in_switch
.hidden stand_in_switch
.type stand_in_switch, @function
stand_in_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rdi
.globl stand_in_jump
.hidden stand_in_jump
.type stand_in_jump, @function
stand_in_jump:
    movq %rdi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl stand_in_switch
.hidden stand_in_switch
.type stand_in_switch, %function
stand_in_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov x0, x1
.globl stand_in_jump
.hidden stand_in_jump
.type stand_in_jump, %function
stand_in_jump:
    mov sp, x0
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
#endif
