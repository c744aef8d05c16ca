//! Process calls that the standard library leaves out: workers die with their parent, and a closed pipe ends the program
//! quietly. Knows nothing of what the processes do.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets the child of `command` lead a process group of its own (a Ctrl-C on the terminal reaches the parent only) and
/// receive SIGKILL when the parent thread that spawned it ends.
pub fn die_with_parent(command: &mut Command) {
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            // The parent may have died before the call took effect.
            if nix::unistd::getppid().as_raw() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Restores the default action of SIGPIPE: `peerproof map | head` ends instead of panicking on the closed pipe.
pub fn default_sigpipe() {
    // SAFETY: SIG_DFL is a valid action at any time and runs no code.
    let _ = unsafe {
        nix::sys::signal::signal(
            nix::sys::signal::Signal::SIGPIPE,
            nix::sys::signal::SigHandler::SigDfl,
        )
    };
}

/// Lets a write to a pipe that nobody reads any more be an error of that write: a worker that died must not end its parent.
pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid action at any time and runs no code.
    let _ = unsafe {
        nix::sys::signal::signal(
            nix::sys::signal::Signal::SIGPIPE,
            nix::sys::signal::SigHandler::SigIgn,
        )
    };
}

/// Sets a flag when SIGINT or SIGTERM arrives; the caller polls [`interrupted`].
pub fn catch_interrupts() {
    let action = nix::sys::signal::SigAction::new(
        nix::sys::signal::SigHandler::Handler(on_interrupt),
        nix::sys::signal::SaFlags::empty(),
        nix::sys::signal::SigSet::empty(),
    );
    for signal in [
        nix::sys::signal::Signal::SIGINT,
        nix::sys::signal::Signal::SIGTERM,
    ] {
        // SAFETY: the handler only stores to an atomic.
        let _ = unsafe { nix::sys::signal::sigaction(signal, &action) };
    }
}

static INTERRUPTS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

extern "C" fn on_interrupt(_: libc::c_int) {
    // A second signal ends the program at once: the first one may be waiting for a stuck worker.
    if INTERRUPTS.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
        // SAFETY: _exit is async-signal-safe; workers die with this process.
        unsafe { libc::_exit(3) };
    }
}

static TIME_IS_UP: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// As if an interrupt had arrived: time is up.
pub fn interrupt() {
    TIME_IS_UP.store(!interrupted(), std::sync::atomic::Ordering::SeqCst);
    INTERRUPTS.fetch_max(1, std::sync::atomic::Ordering::SeqCst);
}

/// Whether [`interrupt`] was what ended the run, and no signal before it.
pub fn time_is_up() -> bool {
    TIME_IS_UP.load(std::sync::atomic::Ordering::SeqCst)
}

/// Ends the program at once, without waiting for anything; workers die with it.
pub fn leave(code: u8) -> ! {
    // SAFETY: _exit only ends this process.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Whether an interrupt has arrived since [`catch_interrupts`].
pub fn interrupted() -> bool {
    INTERRUPTS.load(std::sync::atomic::Ordering::SeqCst) > 0
}

/// Columns of the terminal on standard output; `None` when it is none.
pub fn terminal_width() -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ fills the struct behind a pointer to a live local, or answers an error.
    let answered = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    (answered && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
