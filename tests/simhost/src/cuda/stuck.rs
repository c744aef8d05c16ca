//! A process that cannot be killed. A thread that sleeps uninterruptibly in a driver keeps its process, its memory and its open
//! files, whatever signals come; no unprivileged program can make itself sleep so. What it can have is a tracer that holds it
//! where it would end: SIGKILL then takes every other thread and leaves the process, its files open, and `waitpid` of its
//! parent has nothing to tell.
//!
//! The tracer is a fork of the process in a session of its own. It lets go when the process's parent has ended, so that nothing of a
//! run is left behind for ever.
use super::view::forever;
use std::sync::Once;
use std::time::Duration;

/// The tracer's patience where the parent does not end.
const AT_MOST: Duration = Duration::from_secs(600);
/// Between its looks at the parent.
const LOOK: Duration = Duration::from_millis(50);

/// Holds the process against SIGKILL, and the calling thread for ever.
pub(crate) fn stuck() -> ! {
    static HELD: Once = Once::new();
    HELD.call_once(hold);
    forever()
}

fn hold() {
    // SAFETY: plain process calls; the pipe lives in this frame. The fork of a process with threads makes only
    // async-signal-safe calls.
    unsafe {
        let (process, parent) = (libc::getpid(), libc::getppid());
        // Where Yama keeps descendants from tracing; elsewhere an error that changes nothing.
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
        let mut ends = [-1; 2];
        if libc::pipe(ends.as_mut_ptr()) != 0 {
            return refused("no pipe");
        }
        match libc::fork() {
            -1 => return refused("no fork"),
            0 => trace(process, parent, ends[1]),
            _ => {}
        }
        libc::close(ends[1]);
        let mut held = 0_u8;
        let read = libc::read(ends[0], (&raw mut held).cast(), 1);
        libc::close(ends[0]);
        if read != 1 || held != 1 {
            refused("this system lets no process trace its parent");
        }
    }
}

/// A test that relies on the fault must not take a plain hang for it.
fn refused(why: &str) {
    eprintln!("simhost: the process is not stuck and can be killed: {why}");
}

/// The tracer: holds `process`, says so on `ready`, and ends when `parent` is gone.
///
/// # Safety
/// Only in a fork that nothing else shares.
unsafe fn trace(process: libc::pid_t, parent: libc::pid_t, ready: libc::c_int) -> ! {
    // SAFETY: async-signal-safe calls with plain numbers; the byte lives in this frame.
    unsafe {
        // Whoever kills the process's group does not mean this one.
        libc::setsid();
        let held = libc::ptrace(
            libc::PTRACE_SEIZE,
            process,
            std::ptr::null_mut::<libc::c_void>(),
            libc::PTRACE_O_TRACEEXIT as usize as *mut libc::c_void,
        );
        let word = u8::from(held == 0);
        libc::write(ready, (&raw const word).cast(), 1);
        // Nobody waits for the end of a pipe that this one holds open.
        libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0);
        let looks = AT_MOST.as_millis() / LOOK.as_millis();
        for _ in 0..looks {
            if held != 0 || libc::kill(parent, 0) != 0 {
                break;
            }
            libc::usleep(LOOK.as_micros() as libc::c_uint);
        }
        libc::_exit(0)
    }
}
