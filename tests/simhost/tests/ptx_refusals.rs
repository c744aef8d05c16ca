//! Traps, refusals at parse time, the slow path of a memory, and cancelling.
mod ptx_machine;
use ptx_machine::*;
use simhost::ptx::{Access, FenceKind, Launch, Memory, Module, Order, Scope, Trap, TrapKind, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

fn module(body: &str) -> Module {
    let text = format!(
        ".version 7.4\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u32 v)\n{{\n\
         .reg .b64 %rd<9>;\n.reg .b32 %r<9>;\n.reg .pred %p<9>;\nld.param.u64 %rd0, [p];\nld.param.u32 %r0, [v];\n{body}\nret;\n}}\n"
    );
    Module::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

fn trap(body: &str, addr: u64) -> Trap {
    launch(&module(body), "k", &Region::new(256), 1, 32, &[addr, 0]).unwrap_err()
}

#[test]
fn misaligned_and_unmapped_accesses_trap() {
    let t = trap("ld.global.u32 %r1, [%rd0];", BASE + 2);
    assert_eq!((t.kind, t.cuda_error()), (TrapKind::MisalignedAddress, 716));
    assert!(
        t.detail.contains("`k`, PTX line 11") && t.detail.contains("0x7f0000000002"),
        "{t}"
    );
    assert_eq!(
        trap("st.global.v4.u32 [%rd0], {%r0, %r0, %r0, %r0};", BASE + 8).cuda_error(),
        716
    );
    assert_eq!(
        trap("atom.global.add.u64 %rd1, [%rd0], 1;", BASE + 4).cuda_error(),
        716
    );
    assert_eq!(trap("ld.global.u32 %r1, [%rd0];", 0).cuda_error(), 700);
    assert_eq!(
        trap("ld.global.u64 %rd1, [%rd0+8];", BASE + 248).cuda_error(),
        700
    );
    assert_eq!(
        trap("st.global.u8 [%rd0], %r0;", u64::MAX).cuda_error(),
        700
    );
    assert_eq!(
        trap("atom.global.add.u32 %r1, [%rd0], 1;", BASE + 256).cuda_error(),
        700
    );
    assert_eq!(
        trap(
            ".shared .b32 s[4]; mov.u32 %r2, s; st.shared.u32 [%r2+16], 1;",
            BASE
        )
        .cuda_error(),
        700
    );
    assert_eq!(trap("trap;", BASE).cuda_error(), 715);
}

#[test]
fn the_last_lane_alone_may_be_out_of_range() {
    let m = module(
        "mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r1;",
    );
    let r = Region::new(256);
    launch(&m, "k", &r, 1, 32, &[BASE + 128, 0]).unwrap();
    assert_eq!(r.get::<u32>(128, 32), (0..32).collect::<Vec<u32>>());
    let t = launch(&m, "k", &r, 1, 32, &[BASE + 132, 0]).unwrap_err();
    assert_eq!(t.kind, TrapKind::IllegalAddress);
}

#[test]
fn threads_that_wait_for_nobody_are_a_deadlock() {
    let t = trap(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; @%p1 bra A; bar.sync 0; ret; A: bar.sync 1;",
        BASE,
    );
    assert_eq!((t.kind, t.cuda_error()), (TrapKind::Deadlock, 719));
    let t = trap(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 16; @%p1 bar.sync 3; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;",
        BASE,
    );
    assert_eq!(t.kind, TrapKind::Deadlock);
}

#[test]
fn launches_that_do_not_fit_are_refused() {
    let m = Module::parse(
        ".version 7.4\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 a, .param .align 4 .b8 s[12], .param .u64 b)\n\
         .maxntid 64, 2, 1\n.minnctapersm 1\n{\nret;\n}",
    )
    .unwrap();
    let entry = m.entry("k").unwrap();
    assert_eq!((entry.param_bytes, entry.max_threads), (32, Some(128)));
    assert_eq!(
        entry
            .params
            .iter()
            .map(|p| (p.offset, p.size))
            .collect::<Vec<_>>(),
        [(0, 8), (8, 12), (24, 8)]
    );
    let r = Region::new(16);
    let go = |grid, block, bytes: usize, dynamic_shared| {
        run(
            &Launch {
                entry,
                grid,
                block,
                params: &vec![0; bytes],
                dynamic_shared,
            },
            &r,
        )
        .map_err(|t| t.cuda_error())
    };
    assert!(go([2, 3, 4], [32, 2, 2], 32, 0).is_ok());
    for bad in [
        go([1; 3], [1; 3], 31, 0),
        go([0, 1, 1], [1; 3], 32, 0),
        go([1; 3], [0, 1, 1], 32, 0),
        go([1; 3], [129, 1, 1], 32, 0),
        go([u32::MAX; 3], [1; 3], 32, 0),
        go([1; 3], [u32::MAX; 3], 32, 0),
        go([1; 3], [1; 3], 32, 1 << 20),
    ] {
        assert_eq!(bad, Err(1));
    }
}

#[test]
fn what_cannot_be_executed_is_refused_with_its_line() {
    let head = ".version 7.4\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n.reg .b16 %h<4>;\n.reg .pred %p<4>;\n";
    for (bad, says) in [
        (
            "tex.2d.v4.s32.s32 {%r0, %r1, %r2, %r3}, [p, {%r0, %r1}];",
            "",
        ),
        (
            "frobnicate.u32 %r0, %r1;",
            "`frobnicate.u32` is not supported",
        ),
        ("add.rz.f32 %r0, %r1, %r2;", "`add.rz.f32` is not supported"),
        ("add.cc.u32 %r0, %r1, %r2;", "`add.cc.u32` is not supported"),
        ("ld.global.v3.u32 %r0, [%rd0];", "is not supported"),
        ("ld.acquire.global.u32 %r0, [%rd0];", "is not supported"),
        ("ld.release.sys.global.u32 %r0, [%rd0];", "is not supported"),
        ("atom.global.add.f16 %h0, [%rd0], %h1;", "is not supported"),
        ("fence.proxy.async;", "is not supported"),
        ("call (%r0), f, (%r1);", ""),
        ("bra NOWHERE;", "label `NOWHERE` is not defined"),
        ("add.u32 %r0, %r1;", "takes 3 operands, not 2"),
        (
            "add.u32 %r0, %r1, %rd0;",
            "register `%rd0` of 64 bits used as U32",
        ),
        ("add.u32 %r0, %r1, %r9;", "`%r9` is not declared"),
        ("ld.param.u64 %rd0, [q];", "register `q` is not declared"),
        (
            "mov.u32 %r0, %envreg3;",
            "`%envreg3` is not declared or not supported",
        ),
        ("add.u32 5, %r0, %r1;", "a destination must be a register"),
        ("add.u32 %r0, %r1, 1.5;", "operand does not fit"),
        ("bar.arrive 0, 64;", "is not supported"),
        ("selp.u32 %r0, %r1, %r2, %r3;", "used as Pred"),
        ("ld.global.u32 %r0, [%r1];", "64-bit register"),
        (".reg .b128 %q;", "`.b128` are not supported"),
        ("mov.u32 %r0, 12ab;", "number `12ab` is not understood"),
    ] {
        let e = Module::parse(&format!("{head}{bad}\nret;\n}}\n"))
            .err()
            .unwrap_or_else(|| panic!("{bad} parsed"));
        assert_eq!(e.line, 10, "{bad}: {e}");
        assert!(e.message.contains(says), "{bad}: {e}");
    }
    for (bad, line) in [
        (".version 7.4\n.func f()\n{\nret;\n}", 2),
        (".version 7.4\n.address_size 32", 2),
        (".visible .entry k()\n{\nret;\n", 3),
        ("/* open", 1),
        (".global .u32 x[2] = {1, 2, 3};", 1),
        (".global .u32 x[99999999999];", 1),
        ("\u{e9}", 1),
    ] {
        let e = Module::parse(bad)
            .err()
            .unwrap_or_else(|| panic!("{bad:?} parsed"));
        assert_eq!(e.line, line, "{bad:?}: {e}");
    }
}

#[test]
fn cut_and_changed_texts_never_panic() {
    let text = include_str!("ptx/kernels.ptx");
    for cut in (0..text.len()).step_by(97) {
        let _ = Module::parse(&text[..cut]);
    }
    let mut rng = Rng(9);
    let pieces = [
        "%r1",
        ";",
        "{",
        "}",
        "[",
        "0",
        ".u64",
        "@%p1",
        "-",
        "0f00000000",
        "bra",
        ",",
        "|",
        "!",
        "<",
        ">",
        "_",
    ];
    for _ in 0..300 {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for _ in 0..2 {
            let k = rng.next() as usize % lines.len();
            let piece = pieces[rng.next() as usize % pieces.len()];
            let at = rng.next() as usize % (lines[k].len() + 1);
            lines[k].insert_str(at, piece);
        }
        let _ = Module::parse(&lines.join("\n"));
    }
}

/// A memory without spans that notes what the interpreter asks for.
struct Slow {
    inner: Region,
    seen: Mutex<Vec<String>>,
}

impl Memory for Slow {
    fn span(&self, _: u64, _: usize, _: bool) -> Option<*mut u8> {
        None
    }
    fn read(&self, addr: u64, out: &mut [u8], access: Access) -> Result<(), Trap> {
        let p = self
            .inner
            .span(addr, out.len(), false)
            .ok_or_else(|| Trap::illegal_address(addr))?;
        // SAFETY: inside the region.
        unsafe { std::ptr::copy_nonoverlapping(p, out.as_mut_ptr(), out.len()) };
        self.seen.lock().unwrap().push(format!(
            "read {} {}x{} {:?}",
            addr - BASE,
            access.width,
            access.count,
            access.order
        ));
        Ok(())
    }
    fn write(&self, addr: u64, data: &[u8], access: Access) -> Result<(), Trap> {
        if addr >= BASE + 128 {
            return Err(Trap::new(TrapKind::Device(220), "link is down"));
        }
        self.inner.put((addr - BASE) as usize, data);
        self.seen.lock().unwrap().push(format!(
            "write {} {}x{} {:?}",
            addr - BASE,
            access.width,
            access.count,
            access.order
        ));
        Ok(())
    }
    fn fence(&self, kind: FenceKind, scope: Scope) {
        assert!(scope == Scope::Sys || kind == FenceKind::SeqCst);
        self.seen.lock().unwrap().push(format!("{kind:?}"));
    }
    fn globaltimer(&self) -> u64 {
        0
    }
}

#[test]
fn a_memory_without_spans_sees_every_access_and_fence_in_order() {
    let m = module(
        "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0]; st.global.v2.u32 [%rd0+16], {%r3, %r4};\n\
         st.release.sys.global.u32 [%rd0+24], %r1; ld.acquire.sys.global.u32 %r5, [%rd0+24]; st.volatile.global.u16 [%rd0+28], %r5;\n\
         membar.gl; setp.eq.u32 %p1, %r0, 0; @%p1 bra END; st.global.u32 [%rd0+128], %r1; END:",
    );
    let mem = Slow {
        inner: Region::new(256),
        seen: Mutex::default(),
    };
    mem.inner.put(0, &[11u32, 22, 33, 44]);
    let s = launch(&m, "k", &mem, 1, 1, &[BASE, 0]).unwrap();
    assert_eq!(
        *mem.seen.lock().unwrap(),
        [
            "read 0 4x4 Weak",
            "write 16 4x2 Weak",
            "Release",
            "write 24 4x1 Release",
            "read 24 4x1 Acquire",
            "Acquire",
            "write 28 2x1 Volatile",
            "SeqCst"
        ]
    );
    assert_eq!(mem.inner.get::<u32>(16, 4), [33, 44, 11, 11]);
    assert_eq!((s.bytes_read, s.bytes_written), (20, 14));
    assert_eq!(
        launch(&m, "k", &mem, 1, 1, &[BASE, 1])
            .unwrap_err()
            .cuda_error(),
        220
    );
    assert_eq!(Order::Weak, Order::Weak);
}

#[test]
fn blocks_that_look_busy_while_they_wait_still_meet() {
    // Each turn of the waiting loop also stores, so it never looks idle.
    let m = module(
        "red.global.add.u32 [%rd0], 1; mov.u32 %r1, %nctaid.x;\n\
         L: st.global.u32 [%rd0+4], %r1; ld.volatile.global.u32 %r2, [%rd0]; setp.lt.u32 %p1, %r2, %r1; @%p1 bra L;",
    );
    let r = Region::new(64);
    launch(&m, "k", &r, 9, 1, &[BASE, 0]).unwrap();
    assert_eq!(r.get::<u32>(0, 2), [9, 9]);
}

#[test]
fn dynamic_shared_memory_starts_at_its_own_alignment() {
    let m = Module::parse(
        ".version 7.4\n.target sm_70\n.address_size 64\n.extern .shared .align 128 .b8 dyn[];\n.visible .entry k(.param .u64 p)\n{\n\
         .reg .b64 %rd<4>; .reg .b32 %r<4>; .shared .align 4 .b8 fixed[20];\n\
         mov.u32 %r0, dyn; mov.u32 %r1, fixed; st.shared.u32 [%r1+16], 5; st.shared.u32 [dyn+60], 7; ld.shared.u32 %r2, [%r0+60];\n\
         ld.param.u64 %rd0, [p]; st.global.v4.u32 [%rd0], {%r0, %r1, %r2, %r3}; ret;\n}",
    )
    .unwrap();
    let entry = m.entry("k").unwrap();
    assert_eq!(entry.shared_bytes, 20);
    let r = Region::new(64);
    let p = params(entry, &[BASE]);
    let go = |dynamic_shared| {
        run(
            &Launch {
                entry,
                grid: [1; 3],
                block: [1; 3],
                params: &p,
                dynamic_shared,
            },
            &r,
        )
    };
    go(64).unwrap();
    assert_eq!(r.get::<u32>(0, 3), [128, 0, 7]);
    assert_eq!(go(60).unwrap_err().kind, TrapKind::IllegalAddress);
    assert_eq!(go(0).unwrap_err().kind, TrapKind::IllegalAddress);
}

struct Stoppable(Region, AtomicBool);

impl Memory for Stoppable {
    fn span(&self, addr: u64, len: usize, write: bool) -> Option<*mut u8> {
        self.0.span(addr, len, write)
    }
    fn globaltimer(&self) -> u64 {
        0
    }
    fn cancelled(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

#[test]
fn a_kernel_that_never_ends_can_be_cancelled() {
    for body in [
        "L: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;",
        "L: add.u32 %r1, %r1, 1; bra L;",
    ] {
        let mem = Stoppable(Region::new(64), AtomicBool::new(false));
        let t = std::thread::scope(|s| {
            let h = s.spawn(|| launch(&module(body), "k", &mem, 4, 64, &[BASE, 0]));
            std::thread::sleep(std::time::Duration::from_millis(30));
            mem.1.store(true, Ordering::Relaxed);
            h.join().unwrap().unwrap_err()
        });
        assert_eq!(t.kind, TrapKind::Cancelled);
    }
}

#[test]
fn every_committed_kernel_parses() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
    let Ok(files) = std::fs::read_dir(&folder) else {
        println!("no {} yet: nothing to parse", folder.display());
        return;
    };
    for path in files
        .map(|f| f.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
    {
        let m = Module::parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(m.entries().count() > 0, "{} has no entry", path.display());
    }
}
