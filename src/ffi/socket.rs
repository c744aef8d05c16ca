//! A private line between two processes, over which file descriptors pass: a pair of Unix sockets of which a child inherits
//! one end, so it has no name in any file system. Knows nothing of what the descriptors stand for.

use std::{
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
};

/// Longest that sending or receiving may block, seconds: what is received was sent before its receiver is told so.
const LIMIT_S: libc::time_t = 5;
/// Bytes for the control part of a message, as words so that it is aligned: room for a few descriptors.
const CONTROL: usize = 16;

/// One end.
#[derive(Debug)]
pub struct Line(OwnedFd);

impl Line {
    /// Two ends that know each other and nobody else. Both close on exec.
    ///
    /// # Errors
    /// The system's: no descriptors left.
    pub fn pair() -> io::Result<(Line, Line)> {
        let mut ends = [0; 2];
        // Messages keep their boundaries: one descriptor each.
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: the array has room for two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } as isize)?;
        // SAFETY: both were just made and belong to nobody else.
        let [one, other] = ends.map(|end| Line(unsafe { OwnedFd::from_raw_fd(end) }));
        one.limit()?;
        other.limit()?;
        Ok((one, other))
    }

    fn limit(&self) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: LIMIT_S,
            tv_usec: 0,
        };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: the option takes a timeval of exactly this size.
            check(unsafe {
                libc::setsockopt(
                    self.0.as_raw_fd(),
                    libc::SOL_SOCKET,
                    option,
                    std::ptr::from_ref(&time).cast(),
                    size_of::<libc::timeval>() as libc::socklen_t,
                )
            } as isize)?;
        }
        Ok(())
    }

    /// The number under which a child that inherits this end finds it.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Lets the next child of `command` inherit this end under its number. The caller closes its own copy afterwards.
    pub fn inherit(&self, command: &mut Command) {
        let fd = self.0.as_raw_fd();
        // SAFETY: the closure runs between fork and exec and makes one async-signal-safe call.
        unsafe {
            command.pre_exec(move || check(libc::fcntl(fd, libc::F_SETFD, 0) as isize).map(|_| ()));
        }
    }

    /// Takes over an inherited end, once in a process.
    ///
    /// # Errors
    /// There is no such descriptor, or it is no socket.
    pub fn inherited(number: i32) -> io::Result<Line> {
        let mut kind: libc::c_int = 0;
        let mut size = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option fills one int, and its size is given.
        check(unsafe {
            libc::getsockopt(
                number,
                libc::SOL_SOCKET,
                libc::SO_TYPE,
                std::ptr::from_mut(&mut kind).cast(),
                &mut size,
            )
        } as isize)?;
        if kind != libc::SOCK_SEQPACKET || number <= libc::STDERR_FILENO {
            return Err(io::Error::other("the inherited descriptor is no line"));
        }
        // SAFETY: a socket that the parent left open for this process; nobody else here knows its number.
        let line = Line(unsafe { OwnedFd::from_raw_fd(number) });
        // SAFETY: a plain call on a descriptor of ours.
        check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } as isize)?;
        Ok(line)
    }

    /// Sends a copy of `descriptor`, with a number by which the receiver knows what it is for.
    ///
    /// # Errors
    /// The other end is closed, or does not take it in time.
    pub fn send(&self, tag: u64, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut bytes = tag.to_le_bytes();
        let mut control = [0u64; CONTROL];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: plain integers and pointers, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the control buffer is aligned and larger than one header with one descriptor, which is all that is written.
        let sent = unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as _;
            libc::CMSG_DATA(header)
                .cast::<libc::c_int>()
                .write_unaligned(descriptor.as_raw_fd());
            again(|| libc::sendmsg(self.0.as_raw_fd(), &message, libc::MSG_NOSIGNAL))
        };
        sent.map(|_| ())
    }

    /// Receives the next descriptor and its number.
    ///
    /// # Errors
    /// The other end is closed, nothing comes in time, or a message came that carries no single descriptor.
    pub fn receive(&self) -> io::Result<(u64, OwnedFd)> {
        let mut bytes = [0u8; 8];
        let mut control = [0u64; CONTROL];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: plain integers and pointers, for which zeros are valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let mut descriptors = Vec::new();
        // SAFETY: both buffers live and their sizes are given; the kernel has written whole headers into the control part, and
        // every descriptor in them is new and belongs to this process alone.
        let got = unsafe {
            let got =
                again(|| libc::recvmsg(self.0.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC))?;
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                if ((*header).cmsg_level, (*header).cmsg_type)
                    == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
                {
                    let data = libc::CMSG_DATA(header).cast::<libc::c_int>();
                    let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    for at in 0..length / size_of::<libc::c_int>() {
                        descriptors.push(OwnedFd::from_raw_fd(data.add(at).read_unaligned()));
                    }
                }
                header = libc::CMSG_NXTHDR(&message, header);
            }
            got
        };
        match (got, descriptors.len(), descriptors.pop()) {
            (0, ..) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            (8, 1, Some(descriptor)) => Ok((u64::from_le_bytes(bytes), descriptor)),
            // What came besides is closed here.
            _ => Err(io::Error::other(
                "a message without a single descriptor came",
            )),
        }
    }
}

fn check(answer: isize) -> io::Result<isize> {
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// Repeats a call that a signal interrupted.
fn again(mut call: impl FnMut() -> isize) -> io::Result<isize> {
    loop {
        match check(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::{Read, Seek, Write},
        os::fd::AsFd,
    };

    fn open_descriptors() -> usize {
        std::fs::read_dir("/proc/self/fd").unwrap().count()
    }

    /// As between two ranks: one sends, the parent relays and closes its copy, the other reads the same file.
    #[test]
    fn a_relayed_descriptor_is_the_same_file_and_no_copy_stays_behind() {
        let before = open_descriptors();
        {
            let (parent_a, rank_a) = Line::pair().unwrap();
            let (parent_b, rank_b) = Line::pair().unwrap();
            for tag in [7, u64::MAX] {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(b"bytes of the owner").unwrap();
                rank_a.send(tag, file.as_fd()).unwrap();
                drop(file);
                let (seen, copy) = parent_a.receive().unwrap();
                parent_b.send(seen, copy.as_fd()).unwrap();
                drop(copy);
                let (seen, copy) = rank_b.receive().unwrap();
                assert_eq!(seen, tag);
                let mut file = File::from(copy);
                file.rewind().unwrap();
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(text, "bytes of the owner");
            }
            assert_eq!(open_descriptors(), before + 4);
        }
        assert_eq!(open_descriptors(), before);
    }

    #[test]
    fn a_closed_end_is_an_error_and_no_wait() {
        let (one, other) = Line::pair().unwrap();
        drop(other);
        let started = std::time::Instant::now();
        assert!(one.receive().is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(one.send(1, file.as_fd()).is_err());
        assert!(started.elapsed().as_secs() < LIMIT_S as u64);
    }

    /// The child finds its end under the number that it was told, and no other process has it.
    #[test]
    fn a_child_inherits_its_end_and_nothing_else() {
        let (parent, child) = Line::pair().unwrap();
        let number = child.number();
        let script = format!("printf 12345678 >&{number}; ls -l /proc/self/fd | grep -c socket");
        let mut command = Command::new("bash");
        command.args(["-c", &script]);
        child.inherit(&mut command);
        let out = command.output().unwrap();
        drop(child);
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "1");
        // It wrote plain bytes: refused, because they carry no descriptor. Then the line is closed.
        assert!(parent.receive().is_err());
        assert_eq!(
            parent.receive().unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        // Another child does not get it.
        let (parent, child) = Line::pair().unwrap();
        let script = format!("test -e /proc/self/fd/{}", child.number());
        let status = Command::new("bash").args(["-c", &script]).status().unwrap();
        assert!(!status.success());
        drop((parent, child));
    }

    #[test]
    fn what_is_no_line_is_not_taken_over() {
        assert!(Line::inherited(1 << 20).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(Line::inherited(file.as_raw_fd()).is_err());
    }
}
