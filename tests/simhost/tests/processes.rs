//! Two processes of one run: kernels that wait for each other over IPC, and transfers that share links.
mod harness;

use harness::*;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};

const N: usize = 8 << 20;
const PRO: &str = "rtxpro6000-x8-root-complex";
const SOCKET: &str = "SIMHOST_TEST_PARTNER";

/// A line to the other side, and its line.
fn swap(socket: &UnixStream, line: &str) -> String {
    let mut out = socket;
    writeln!(out, "{line}").unwrap();
    let mut answer = String::new();
    // One byte at a time: nothing of the next line may be taken.
    BufReader::with_capacity(1, socket)
        .read_line(&mut answer)
        .unwrap();
    answer.trim().to_string()
}

fn ticket_text(h: &Host, p: Ptr) -> String {
    let mut ticket = Ticket([0; 64]);
    assert_eq!(h.cu.cuIpcGetMemHandle(&mut ticket, p), 0);
    ticket.0.map(|b| b.to_string()).join(" ")
}

fn open(h: &Host, gpu: usize, text: &str) -> Ptr {
    let bytes: Vec<u8> = text.split(' ').map(|w| w.parse().unwrap()).collect();
    let mut p = 0;
    assert_eq!(
        h.on(gpu)
            .cu
            .cuIpcOpenMemHandle_v2(&mut p, Ticket(bytes.try_into().unwrap()), 1),
        0
    );
    p
}

/// Plays ping-pong with the partner; both have a flag page of their own and the payload lies with side 1.
fn exchange(side: u64, gpu: usize, socket: &UnixStream) {
    let h = Host::new();
    let (flag, payload) = (h.alloc(gpu, 2 << 20), h.alloc(gpu, 2 << 20));
    h.put(gpu, flag, &[0; 4096]);
    let theirs = open(&h, gpu, &swap(socket, &ticket_text(&h, flag)));
    let other = swap(socket, &ticket_text(&h, payload));
    let payload = if side == 1 {
        payload
    } else {
        open(&h, gpu, &other)
    };
    let (f, s) = (
        h.function(gpu, include_str!("ptx/kernels.ptx"), "ping"),
        h.stream(gpu, NON_BLOCKING),
    );
    swap(socket, "ready");
    let args = vec![
        flag,
        theirs,
        payload,
        20,
        u64::from(side == 0),
        8_000_000_000,
        flag + 64,
    ];
    assert_eq!(h.launch(gpu, f, 1, 1, s, args), 0);
    assert_eq!(h.cu.cuStreamSynchronize(s), 0);
    assert_eq!(h.get(gpu, flag + 64, 4), [0; 4], "side {side}");
    swap(socket, "done");
}

/// Rates of ten copies from GPU 0, started together with the partner's.
fn load(to: usize, socket: &UnixStream) -> Vec<f32> {
    let h = Host::new();
    assert_eq!(h.enable(0, to), 0);
    let (a, b, s) = (h.alloc(0, N), h.alloc(to, N), h.stream(0, NON_BLOCKING));
    let (x, y) = (h.event(), h.event());
    h.on(0);
    let rates = (0..10).map(|_| {
        swap(socket, "go");
        h.cu.cuEventRecord(x, s);
        assert_eq!(
            h.cu.cuMemcpyPeerAsync(b, h.contexts[to], a, h.contexts[0], N, s),
            0
        );
        h.cu.cuEventRecord(y, s);
        assert_eq!(h.cu.cuEventSynchronize(y), 0);
        let mut ms = 0.0;
        assert_eq!(h.cu.cuEventElapsedTime(&mut ms, x, y), 0);
        N as f32 / ms / 1e6
    });
    rates.collect()
}

fn side(side: u64, what: &str, socket: &UnixStream) {
    match what {
        "two_gpus" => exchange(side, side as usize, socket),
        "one_gpu" => exchange(side, 0, socket),
        "load" => {
            let mut rates = load(1 + side as usize, socket);
            rates.sort_by(f32::total_cmp);
            // 56 GB/s alone. A turn in which the machine kept one of the two waiting may be missed.
            assert!(rates[2] < 32.0, "{rates:?}");
        }
        other => panic!("{other}"),
    }
}

/// The other process.
#[test]
fn partner() {
    let Ok(text) = std::env::var(SOCKET) else {
        return;
    };
    let (what, path) = text.split_once(':').unwrap();
    side(1, what, &UnixStream::connect(path).unwrap());
}

fn with_partner(what: &'static str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let text = format!("{what}:{}", path.display());
    let other = std::thread::spawn(move || {
        run_self("partner", |c| {
            c.env(SOCKET, text);
        })
    });
    side(0, what, &listener.accept().unwrap().0);
    must_pass(Some(other.join().unwrap()));
}

macro_rules! simulated {
    ($($name:ident, $settings:expr => $body:expr;)*) => {$(
        #[test]
        fn $name() {
            must_pass(in_child(stringify!($name), PRO, &$settings, &[], || { let body: fn() = $body; body() }));
        }
    )*};
}

simulated! {
    kernels_of_two_processes_on_two_gpus_wait_for_each_other, [] => || with_partner("two_gpus");
    kernels_of_two_processes_on_one_gpu_wait_for_each_other, [] => || with_partner("one_gpu");
    they_do_in_the_weak_mode_too, ["weak_memory=9"] => || with_partner("two_gpus");
    transfers_of_two_processes_share_a_link, [] => || with_partner("load");
    a_kernel_ends_by_flag_by_host_word_and_by_its_clock, [] => || {
        let h = Host::new();
        let mut p: Handle = std::ptr::null_mut();
        assert_eq!(h.on(0).cu.cuMemHostAlloc(&mut p, 4096, 0), 0);
        let word = p.cast::<u32>();
        let (flag, out, s) = (h.alloc(0, 4096), h.alloc(0, 4096), h.stream(0, NON_BLOCKING));
        let f = h.function(0, EXTRA, "wait_for");
        for (limit, want) in [(60_000_000_000_u64, 2_u8), (20_000_000, 3), (60_000_000_000, 1)] {
            h.put(0, flag, &[u8::from(want == 1), 0, 0, 0]);
            // SAFETY: pinned memory that no kernel is using now.
            unsafe { word.write_volatile(0) };
            let begun = std::time::Instant::now();
            assert_eq!(h.launch(0, f, 1, 1, s, vec![flag, p as Ptr, limit, out]), 0);
            if want == 2 {
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert_eq!(h.cu.cuStreamQuery(s), 600);
                // SAFETY: an aligned word, which the kernel reads as such.
                unsafe { word.write_volatile(1) };
            }
            assert_eq!(h.cu.cuStreamSynchronize(s), 0);
            assert!(begun.elapsed().as_secs() < 20);
            assert_eq!(h.get(0, out, 1)[0], want);
        }
    };
}
