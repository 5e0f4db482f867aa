//! What the emulator computes, and what it does not let pass: small kernels, each with one thing in it.

use cuda_emulator::global::{self, Home};
use cuda_emulator::launch::Launch;
use cuda_emulator::parse::parse;

/// Numbers in global memory, while they are there.
struct Numbers(Vec<u32>);

impl Numbers {
    fn new(numbers: Vec<u32>) -> Self {
        global::add(numbers.as_ptr().expose_provenance(), size_of_val(&numbers[..]), Home::Device);
        Self(numbers)
    }

    fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        global::remove(self.0.as_ptr().addr(), Home::Device);
    }
}

/// Runs a kernel of these statements in two blocks of 64 threads and 256 bytes of shared memory. They find their thread in
/// %tid, a place for a number in %place, four bytes for each thread of both blocks, and registers to use.
fn run(statements: &str) -> Result<Vec<u32>, String> {
    let text = format!(
        ".version 8.0
        .target sm_80
        .address_size 64
        .extern .shared .align 16 .b8 memory[];
        .global .align 4 .u32 SEVEN = 7;
        .func (.param .b32 result) doubled(.param .b32 number)
        {{
          .reg .b32 %n;
          ld.param.u32 %n, [number];
          add.u32 %n, %n, %n;
          st.param.b32 [result+0], %n;
          ret;
        }}
        .visible .entry test(.param .u64 out)
        {{
          .reg .b32 %r<20>, %tid, %value;
          .reg .b64 %rd<20>, %place, %out;
          .reg .f32 %f<20>;
          .reg .f64 %fd<20>;
          .reg .b16 %rs<20>;
          .reg .pred %p<20>;
          ld.param.u64 %out, [out];
          mov.u32 %tid, %tid.x;
          mov.u32 %r0, %ctaid.x;
          shl.b32 %r0, %r0, 6;
          add.s32 %r0, %r0, %tid;
          mul.wide.u32 %place, %r0, 4;
          add.s64 %place, %place, %out;
          {statements}
          st.global.u32 [%place], %value;
          ret;
        }}"
    );
    let module = parse(&text)?;
    let out = Numbers::new(vec![0; 128]);
    for variable in &module.variables {
        global::add(variable.as_ptr().expose_provenance(), size_of_val(&**variable), Home::Variable);
    }
    let parameters = out.address().to_le_bytes();
    let kernel = &module.kernels[0];
    let ran = Launch {
        module: &module,
        kernel,
        grid: [2, 1, 1],
        threads: 64,
        shared_bytes: 256,
        parameters: &parameters,
    }
    .run();
    for variable in &module.variables {
        global::remove(variable.as_ptr().addr(), Home::Variable);
    }
    ran.map(|()| out.0.clone())
}

/// What every thread of the first block comes to, by its number; the second block's are the same.
fn expect(statements: &str, value: impl Fn(u32) -> u32) {
    let all = run(statements).unwrap_or_else(|reason| panic!("{statements}: {reason}"));
    let expected: Vec<u32> = (0..64).chain(0..64).map(value).collect();
    assert_eq!(all, expected, "{statements}");
}

fn expect_fault(statements: &str, words: &str) {
    match run(statements) {
        Err(reason) => assert!(reason.contains(words), "{statements}: {reason}"),
        Ok(_) => panic!("{statements}: nothing was said of {words}"),
    }
}

#[test]
fn it_computes() {
    expect("mad.lo.s32 %value, %tid, -3, 5;", |thread| 5u32.wrapping_sub(3 * thread));
    expect("mul.hi.u32 %value, %tid, 0x80000000;", |thread| thread / 2);
    expect("bfe.u32 %value, 0x12345678, 8, %tid;", |thread| {
        0x0012_3456 & ((1u64 << thread.min(32)) - 1) as u32
    });
    expect("bfi.b32 %value, %tid, -1, 8, 4;", |thread| 0xffff_f0ff | (thread & 15) << 8);
    expect("shl.b32 %value, %tid, 40;", |_| 0);
    expect("mov.b64 %rd1, {%tid, 9}; mov.b64 {_, %value}, %rd1;", |_| 9);
    expect("cvt.u16.u32 %rs1, %tid; cvt.s32.s16 %r1, -5; cvt.u32.u16 %value, %rs1;", |thread| thread);
    expect(
        "cvt.rn.f32.u32 %f1, %tid; fma.rn.f32 %f1, %f1, 0f40000000, 0f3F000000; cvt.rzi.u32.f32 %value, %f1;",
        |thread| 2 * thread,
    );
    expect("cvt.rn.f32.u32 %f1, %tid; cvt.rn.bf16.f32 %rs1, %f1; cvt.u32.u16 %value, %rs1;", |thread| {
        (thread as f32).to_bits() >> 16
    });
    expect("setp.lt.u32 %p1, %tid, 9; selp.b32 %value, 1, 2, %p1;", |thread| if thread < 9 { 1 } else { 2 });
    expect("add.cc.u32 %r1, %tid, -1; addc.u32 %value, 0, 0;", |thread| u32::from(thread > 0));
    expect("ld.global.u32 %value, [SEVEN];", |_| 7);
    // Signs fill a register up.
    let sign = "shr.u16 %rs2, %rs1, 12; cvt.u32.u16 %value, %rs2;";
    expect(&format!("cvt.s8.s32 %rs1, -5; {sign}"), |_| 15);
    expect(&format!("ld.global.s8 %rs1, [SEVEN]; {sign}"), |_| 0);
    expect("mul.hi.s32 %value, %tid, -1;", |thread| if thread > 0 { !0 } else { 0 });
    expect("sub.cc.u32 %r1, %tid, 5; subc.u32 %value, 9, 0;", |thread| if thread < 5 { 8 } else { 9 });
    expect("cvt.rni.s32.f32 %value, 0f7FC00000;", |_| 0);
    expect("cvt.rni.s32.f64 %value, 0d7FF8000000000000;", |_| 1 << 31);
    expect("red.global.add.u32 [%place], 5; ld.global.u32 %value, [%place];", |_| 5);
    // What is no number is neither less nor not less, but unordered.
    expect("setp.ltu.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %value, 1, 0, %p1;", |_| 1);
    expect("setp.lt.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %value, 1, 0, %p1;", |_| 0);
    expect("setp.ne.f32 %p1, 0f7FC00000, 0f00000000; selp.b32 %value, 1, 0, %p1;", |_| 0);
}

#[test]
fn threads_branch_and_come_together() {
    let branch = "and.b32 %r1, %tid, 3; setp.eq.s32 %p1, %r1, 0; mov.u32 %value, 1; @%p1 bra ELSE; add.u32 %value, %value, %tid;
        bra.uni JOIN; ELSE: mov.u32 %value, 100; JOIN: ";
    expect(branch, |thread| if thread % 4 == 0 { 100 } else { 1 + thread });
    // As often as its number says.
    let turns = "mov.u32 %value, 0; mov.u32 %r1, 0; LOOP: setp.ge.u32 %p1, %r1, %tid; @%p1 bra OUT; add.u32 %value, %value, 3;
        add.u32 %r1, %r1, 1; bra LOOP; OUT: ";
    expect(turns, |thread| 3 * thread);
    let call = "{ .param .b32 a; st.param.b32 [a+0], %tid; .param .b32 b; call.uni (b), doubled, (a); ld.param.b32 %value, [b+0]; }";
    expect(call, |thread| 2 * thread);
}

#[test]
fn threads_meet() {
    let neighbour = "shfl.sync.bfly.b32 %value|%p1, %tid, 1, 31, -1;";
    expect(neighbour, |thread| thread ^ 1);
    expect(
        "shfl.sync.up.b32 %value|%p1, %tid, 3, 0, -1;",
        |thread| if thread % 32 < 3 { thread } else { thread - 3 },
    );
    expect("shfl.sync.down.b32 %value, %tid, 30, 31, -1;", |thread| {
        if thread % 32 < 2 { thread + 30 } else { thread }
    });
    expect("shfl.sync.idx.b32 %value, %tid, 5, 31, -1;", |thread| thread / 32 * 32 + 5);
    expect("shfl.sync.idx.b32 %value, %tid, 1, 0x1c1f, -1;", |thread| thread / 4 * 4 + 1);
    expect("shfl.sync.up.b32 %value, %tid, 1, 0x1c00, -1;", |thread| {
        if thread % 4 == 0 { thread } else { thread - 1 }
    });
    expect(
        "setp.lt.u32 %p1, %tid, 33; vote.sync.all.pred %p2, %p1, -1; selp.b32 %value, 1, 0, %p2;",
        |thread| u32::from(thread < 32),
    );
    expect(
        "setp.eq.u32 %p1, %tid, 33; vote.sync.any.pred %p2, %p1, -1; selp.b32 %value, 1, 0, %p2;",
        |thread| u32::from(thread >= 32),
    );
    expect("setp.ne.u32 %p1, %tid, 40; bar.red.and.pred %p2, 0, %p1; selp.b32 %value, 1, 0, %p2;", |_| 0);
    // Those that have ended are not waited for.
    let ended = "setp.gt.u32 %p1, %tid, 59; mov.u32 %value, 1; @%p1 st.global.u32 [%place], %tid; @%p1 ret; bar.sync 0;
        vote.sync.ballot.b32 %value, 1, -1;";
    expect(ended, |thread| match thread {
        0..32 => !0,
        32..60 => 0xfff_ffff,
        _ => thread,
    });
    expect("setp.lt.u32 %p1, %tid, 33; vote.sync.ballot.b32 %value, %p1, -1;", |thread| {
        if thread < 32 { !0 } else { 1 }
    });
    expect("redux.sync.or.b32 %value, %tid, -1;", |thread| thread / 32 * 32 + 31);
    expect("elect.sync _|%p1, -1; selp.b32 %value, 1, 0, %p1;", |thread| (thread % 32 == 0).into());
    expect("setp.eq.u32 %p1, %tid, 40; bar.red.or.pred %p2, 0, %p1; selp.b32 %value, 1, 0, %p2;", |_| 1);
    // At two instructions that ask for the same.
    let apart = format!(
        "setp.lt.u32 %p2, %tid, 50; @%p2 bra ELSE; {neighbour} bra.uni JOIN; ELSE: {neighbour} JOIN: "
    );
    expect(&apart, |thread| thread ^ 1);
    let never = format!(
        "setp.lt.u32 %p2, %tid, 50; @%p2 bra ELSE; {neighbour} bra.uni JOIN; ELSE: bar.warp.sync -1; JOIN: "
    );
    expect_fault(&never, "threads wait for one another at different places");
    let half =
        "setp.lt.u32 %p2, %tid, 50; @%p2 bra ELSE; bar.sync 0; bra.uni JOIN; ELSE: bar.warp.sync -1; JOIN: ";
    expect_fault(half, "threads wait for one another at different places");
    expect_fault("shfl.sync.idx.b32 %value, %tid, 5, 31, 3;", "wants to meet 0x3 alone");
    let differ = "setp.lt.u32 %p1, %tid, 32; @%p1 bra ELSE; bar.sync 0; bra.uni JOIN; ELSE: bar.red.or.pred %p2, 0, %p1; JOIN: ";
    expect_fault(&format!("mov.u32 %value, 0; {differ}"), "warps meet at barriers that differ");
}

#[test]
fn global_memory_is_watched() {
    expect_fault("ld.global.u32 %value, [%place+512];", "none are allocated");
    expect_fault("ld.global.u32 %value, [%out+-4];", "none are allocated");
    expect_fault("ld.global.v4.u32 {%value, %r1, %r2, %r3}, [%place];", "no multiple");
    expect_fault("ld.global.v8.u32 {%value, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%place];", "no multiple");
    expect_fault(
        "add.s64 %place, %place, 4; red.global.add.v2.f32 [%place], {%f1, %f1}; mov.u32 %value, 0;",
        "no multiple",
    );
    expect_fault("st.global.u32 [SEVEN], %tid; mov.u32 %value, 0;", "can only be read");
    expect_fault(
        "mov.u64 %rd1, 0; prefetch.global.L2 [%rd1]; ld.global.u32 %value, [%rd1];",
        "none are allocated",
    );
}

/// Threads of both warps write a word each, then read another's.
fn exchange(barrier: &str, other: &str) -> String {
    format!(
        "shl.b32 %r1, %tid, 2; mov.u32 %r2, memory; add.u32 %r1, %r1, %r2; st.shared.u32 [%r1], %tid; {barrier}
        xor.b32 %r3, %tid, {other}; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %value, [%r3];"
    )
}

#[test]
fn barriers_in_shared_memory_order_what_warps_do() {
    // The second warp's threads write numbers behind a barrier, at which one of them arrives; the first's read them.
    let handed_on = |meet: &str, wait: &str| {
        format!(
            "mov.u32 %r1, memory; and.b32 %r2, %tid, 31; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r1; setp.eq.u32 %p1, %tid, 0;
            @%p1 mbarrier.init.shared::cta.b64 [%r1], 1; bar.sync 0; setp.lt.u32 %p2, %tid, 32; @%p2 bra FIRST;
            st.shared.u32 [%r2+64], %tid; {meet} setp.eq.u32 %p3, %tid, 32; @%p3 mbarrier.arrive.shared::cta.b64 _, [%r1];
            mov.u32 %value, %tid; bra.uni END; FIRST: {wait} ld.shared.u32 %value, [%r2+64]; END: "
        )
    };
    let met = "bar.warp.sync -1;";
    let waited = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r1], 0; @!%p4 bra WAIT;";
    expect(&handed_on(met, waited), |thread| if thread < 32 { thread + 32 } else { thread });
    // One waits for all.
    let waited_for = format!("@!%p1 bra MET; {waited} MET: ");
    expect(&handed_on(met, &format!("{waited_for} bar.warp.sync -1;")), |thread| thread % 32 + 32);
    let race = "with no barrier between them";
    expect_fault(&handed_on("", waited), race);
    expect_fault(&handed_on(met, &waited_for), race);
    expect_fault(&handed_on(met, ""), race);
}

#[test]
fn one_writes_what_several_warps_have_read_when_all_have_said_so() {
    let written_again = |count: u32, arrives: &str| {
        format!(
            "mov.u32 %r1, memory; setp.eq.u32 %p1, %tid, 0; @%p1 mbarrier.init.shared::cta.b64 [%r1], {count};
            @%p1 st.shared.u32 [%r1+64], 5; bar.sync 0; ld.shared.u32 %value, [%r1+64]; bar.warp.sync -1;
            and.b32 %r2, %tid, 31; setp.eq.u32 %p2, {arrives}; @%p2 mbarrier.arrive.shared::cta.b64 _, [%r1];
            setp.lt.u32 %p3, %tid, 32; @%p3 bra END;
            WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r1], 0; @!%p4 bra WAIT;
            setp.eq.u32 %p1, %tid, 63; @%p1 st.shared.u32 [%r1+64], 9; END: "
        )
    };
    expect(&written_again(2, "%r2, 0"), |_| 5);
    expect_fault(&written_again(1, "%tid, 32"), "with no barrier between them");
}

#[test]
fn shared_memory_is_watched() {
    expect(&exchange("", "0"), |thread| thread);
    expect(&exchange("bar.sync 0;", "33"), |thread| thread ^ 33);
    expect(&exchange("bar.warp.sync -1;", "1"), |thread| thread ^ 1);
    let race = "with no barrier between them";
    expect_fault(&exchange("", "1"), race);
    expect_fault(&exchange("bar.warp.sync -1;", "32"), race);
    // Written again, after others have read.
    let again = |barrier| format!("{} {barrier} st.shared.u32 [%r1], 7;", exchange("bar.sync 0;", "33"));
    expect(&again("bar.sync 0;"), |thread| thread ^ 33);
    expect_fault(&again("bar.warp.sync -1;"), race);
    // One of many readers writes.
    let last = "shr.u32 %r1, %tid, 5; shl.b32 %r1, %r1, 2; mov.u32 %r2, memory; add.u32 %r1, %r1, %r2; ld.shared.u32 %value, [%r1];
        and.b32 %r3, %tid, 31; setp.eq.u32 %p1, %r3, 31;";
    expect(&format!("{last} bar.warp.sync -1; @%p1 st.shared.u32 [%r1], 5;"), |_| !0);
    expect_fault(&format!("{last} @%p1 st.shared.u32 [%r1], 5;"), race);
    // Bytes, each its own.
    let bytes = |barrier| {
        format!(
            "mov.u32 %r2, memory; add.u32 %r2, %r2, %tid; cvt.u16.u32 %rs1, %tid; st.shared.u8 [%r2], %rs1; {barrier}
            xor.b32 %r1, %tid, 1; mov.u32 %r2, memory; add.u32 %r2, %r2, %r1; ld.shared.u8 %value, [%r2];"
        )
    };
    expect(&bytes("bar.sync 0;"), |thread| thread ^ 1);
    expect_fault(&bytes(""), race);
    // The same by all, or by instructions that others cannot come between.
    let counted = |count| {
        format!(
            "mov.u32 %r1, 0; st.shared.u32 [memory], %r1; bar.sync 0; {count} bar.sync 0; ld.shared.u32 %value, [memory];"
        )
    };
    expect(&counted("atom.shared.max.s32 %r2, [memory], %tid;"), |_| 63);
    expect(&counted("st.shared.u32 [memory], 5;"), |_| 5);
    expect_fault(&counted("st.shared.u32 [memory], %tid;"), race);
    expect_fault(&counted("atom.shared.max.s32 %r2, [memory], %tid; ld.shared.u32 %r2, [memory];"), race);
    expect_fault("ld.shared.u32 %value, [memory+256];", "of 256 that there are");
    expect_fault("ld.shared.v2.u32 {%value, %r1}, [memory+4];", "no multiple");
    // Nobody wrote there.
    expect("ld.shared.u32 %value, [memory+8];", |_| !0);
}

#[test]
fn threads_wait_at_barriers_in_shared_memory() {
    let meet = |threads: u32| {
        format!(
            "setp.ne.u32 %p1, %tid, 0;
            @%p1 bra MADE;
            mbarrier.init.shared::cta.b64 [memory], {threads};
            MADE: bar.sync 0;
            mbarrier.arrive.shared::cta.b64 _, [memory];
            WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory], 0;
            @!%p2 bra WAIT;
            mbarrier.try_wait.parity.shared::cta.b64 %p3, [memory], 1;
            selp.u32 %value, 1, 2, %p3;"
        )
    };
    // The phase before the first counts as over.
    expect(&meet(64), |_| 2);
    expect_fault(&meet(65), "wait at barriers where nobody arrives");
    expect_fault("mbarrier.arrive.shared::cta.b64 _, [memory+8];", "nobody has made a barrier at 8");
    // While bytes are still to come the phase goes on.
    let announced = meet(64)
        .replace("mbarrier.arrive.", "mbarrier.arrive.expect_tx.")
        .replace("_, [memory];", "_, [memory], 4;");
    expect_fault(
        &format!("{announced} mbarrier.arrive.shared::cta.b64 _, [memory];"),
        "wait at barriers where nobody arrives",
    );
    let twice = announced.replace("WAIT:", "mbarrier.arrive.shared::cta.b64 _, [memory]; WAIT:");
    expect_fault(&twice, "more threads arrive than the phase waits for");
}

#[test]
fn warps_wait_for_what_others_write() {
    let wait = |place: &str| {
        format!(
            "WAIT: ld.acquire.gpu.global.u32 %value, [{place}]; setp.ne.u32 %p1, %value, 5; @%p1 bra WAIT;"
        )
    };
    let handed_on = format!(
        "setp.lt.u32 %p2, %tid, 32; @%p2 bra WAIT; mov.u32 %value, 5; st.release.gpu.global.u32 [%place], %value; bra.uni END;
        {} END: ",
        wait("%place+128")
    );
    expect(&handed_on, |_| 5);
    expect_fault(&wait("%place"), "wait at barriers where nobody arrives, or for what nobody writes");
    // Who looks twice has not waited, and goes on.
    let looked_twice = "setp.ne.u32 %p1, %tid, 0; @%p1 bra MADE; mbarrier.init.shared::cta.b64 [memory], 32; MADE: bar.sync 0;
        mov.u32 %value, 1; setp.lt.u32 %p2, %tid, 32; @%p2 bra FIRST;
        WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [memory], 0; @!%p3 bra WAIT; bra.uni END;
        FIRST: ld.acquire.gpu.global.u32 %r1, [%place]; ld.acquire.gpu.global.u32 %r1, [%place];
        mbarrier.arrive.shared::cta.b64 _, [memory]; END: ";
    expect(looked_twice, |_| 1);
}

#[test]
fn what_is_not_known_is_refused() {
    for (statement, words) in [
        ("sin.approx.f32 %f1, %f1;", "sin.approx.f32: it is not known here"),
        ("add.sat.f32 %f1, %f1, %f1;", "add.sat.f32: it is not known here"),
        ("max.f32 %f1, %f1, %f1, %f1;", "max.f32: it is not known here"),
        ("cvt.rz.f32.f64 %f1, %fd1;", "cvt.rz.f32.f64: it is not known here"),
        ("ld.u32 %value, [%rd1];", "addresses of any memory"),
        ("bar.sync 1;", "barriers beside the first"),
        ("add.u32 %value, %nobody, 1;", "%nobody is not known here"),
        ("bra NOWHERE;", "there is no label NOWHERE"),
    ] {
        expect_fault(&format!("mov.u32 %value, 0; {statement}"), words);
    }
}
