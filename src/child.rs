//! Worker processes: this binary again under a hidden subcommand, one JSON message a line on its standard input and
//! output. Knows spawning, deadlines and killing; refuses to know what the messages mean.
//!
//! A worker leads its own process group, ends when its input closes and dies with the thread that spawned it, so that
//! thread must outlive it.

use crate::ffi::{process, socket::Line};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Write},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

/// How long a killed worker may take to disappear. A process stuck in the driver cannot be killed: it is left behind.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Lines of standard error kept for the report of a death.
const STDERR_LINES: usize = 20;
/// Between looks at the interrupt flag while waiting for a message.
const SLICE: Duration = Duration::from_millis(50);

/// A running worker.
pub struct Child {
    process: std::process::Child,
    input: Option<std::process::ChildStdin>,
    lines: mpsc::Receiver<std::io::Result<String>>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// It was killed and did not go: waiting again would only cost time.
    stuck: bool,
}

/// Why no message came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// Nothing until the deadline. The worker still runs.
    #[error("no answer from the worker")]
    TimedOut,
    /// The operator interrupted. The worker still runs.
    #[error("interrupted")]
    Interrupted,
    /// It ended.
    #[error("the worker ended: {0}")]
    Ended(String),
    /// It wrote something that is no message.
    #[error("the worker wrote something that is no message: {0}")]
    Garbled(String),
}

/// Why no worker could be started or reached.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what}: {error}")]
pub struct SpawnError {
    what: &'static str,
    error: std::io::Error,
}

impl Child {
    /// Starts this binary with `arguments`; `environment` sets (`Some`) or removes (`None`) variables over what this
    /// process has.
    pub fn spawn(
        arguments: &[String],
        environment: &[(String, Option<String>)],
    ) -> Result<Child, SpawnError> {
        Child::start(arguments, environment, None)
    }

    /// The same with a line over which file descriptors pass; its number is the last argument.
    pub fn spawn_with_line(
        arguments: &[String],
        environment: &[(String, Option<String>)],
    ) -> Result<(Child, Line), SpawnError> {
        let (own, theirs) = Line::pair().map_err(|error| SpawnError {
            what: "make a pair of sockets",
            error,
        })?;
        let child = Child::start(arguments, environment, Some(&theirs))?;
        Ok((child, own))
    }

    fn start(
        arguments: &[String],
        environment: &[(String, Option<String>)],
        line: Option<&Line>,
    ) -> Result<Child, SpawnError> {
        process::ignore_sigpipe();
        let binary = std::env::current_exe().map_err(|error| SpawnError {
            what: "find this binary",
            error,
        })?;
        let mut command = Command::new(binary);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, value) in environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        process::die_with_parent(&mut command);
        if let Some(line) = line {
            command.arg(line.number().to_string());
            line.inherit(&mut command);
        }
        let mut process = command.spawn().map_err(|error| SpawnError {
            what: "start a worker",
            error,
        })?;
        let (sender, lines) = mpsc::channel();
        if let Some(output) = process.stdout.take() {
            std::thread::spawn(move || {
                let mut output = BufReader::new(output);
                loop {
                    let mut line = String::new();
                    let read = output.read_line(&mut line).map(|_| line);
                    let failed = read.is_err();
                    // A message that its sender did not live to finish is none: how it ended is what counts.
                    if read.as_ref().is_ok_and(|line| !line.ends_with('\n')) {
                        break;
                    }
                    if sender.send(read).is_err() || failed {
                        break;
                    }
                }
            });
        }
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(output) = process.stderr.take() {
            let kept = stderr.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if let Ok(mut kept) = kept.lock() {
                        if kept.len() == STDERR_LINES {
                            kept.pop_front();
                        }
                        kept.push_back(line);
                    }
                }
            });
        }
        let input = process.stdin.take();
        Ok(Child {
            process,
            input,
            lines,
            stderr,
            stuck: false,
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends one message.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), ReceiveError> {
        let mut line =
            serde_json::to_string(message).map_err(|e| ReceiveError::Garbled(e.to_string()))?;
        line.push('\n');
        let sent = self.input.as_mut().map(|input| {
            input
                .write_all(line.as_bytes())
                .and_then(|()| input.flush())
        });
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(ReceiveError::Ended(self.how_ended())),
        }
    }

    /// Waits for the next message until `deadline`, or until the operator interrupts.
    pub fn receive<T: DeserializeOwned>(&mut self, deadline: Instant) -> Result<T, ReceiveError> {
        loop {
            if process::interrupted() {
                return Err(ReceiveError::Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(SLICE)) {
                Ok(Ok(line)) => {
                    return serde_json::from_str(&line).map_err(|error| {
                        ReceiveError::Garbled(format!("{error}: {}", cut(&line)))
                    });
                }
                Ok(Err(error)) => return Err(ReceiveError::Garbled(error.to_string())),
                Err(mpsc::RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(ReceiveError::TimedOut);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(ReceiveError::Ended(self.how_ended()));
                }
            }
        }
    }

    /// Closes its input and waits for it to end by itself; kills it after `grace`.
    pub fn end(mut self, grace: Duration) {
        self.input = None;
        if self.wait(grace).is_none() {
            self.kill_and_wait();
        }
    }

    /// The same for several, which end side by side.
    pub fn end_all(mut children: Vec<Child>, grace: Duration) {
        children.iter_mut().for_each(|child| child.input = None);
        let until = Instant::now() + grace;
        children.retain_mut(|child| {
            let left = until.saturating_duration_since(Instant::now());
            child.wait(left).is_none()
        });
        Child::kill_all(children);
    }

    /// Kills several at once. False when one of them is still there afterwards.
    pub fn kill_all(mut children: Vec<Child>) -> bool {
        children.iter_mut().for_each(Child::signal_kill);
        let until = Instant::now() + KILL_WAIT;
        let mut gone = true;
        for mut child in children {
            let left = until.saturating_duration_since(Instant::now());
            child.stuck = child.wait(left).is_none();
            gone &= !child.stuck;
        }
        gone
    }

    /// Kills it with its process group. False when it is still there afterwards: stuck in the kernel.
    pub fn kill(mut self) -> bool {
        self.kill_and_wait()
    }

    /// Kills it and does not wait: it holds nothing that anybody needs. The system reaps it when this process ends.
    pub fn abandon(mut self) {
        self.input = None;
        self.signal_kill();
        std::mem::forget(self);
    }

    fn signal_kill(&mut self) {
        // Reaped already: its number may be another's by now.
        if self.process.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        let pid = Pid::from_raw(self.process.id() as i32);
        // By its group for what it may have started, and by itself should it have left the group.
        let _ = killpg(pid, Signal::SIGKILL);
        let _ = kill(pid, Signal::SIGKILL);
    }

    fn kill_and_wait(&mut self) -> bool {
        self.signal_kill();
        self.stuck = self.wait(KILL_WAIT).is_none();
        !self.stuck
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Some(status);
            }
            if start.elapsed() >= limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How it ended, in words, with the last thing that it said on standard error.
    fn how_ended(&mut self) -> String {
        use std::os::unix::process::ExitStatusExt;
        let how = match self.wait(KILL_WAIT) {
            None => "its output closed but it did not end".to_string(),
            Some(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => {
                    let name = Signal::try_from(signal).map_or("unknown signal", Signal::as_str);
                    format!("signal {signal} ({name})")
                }
                (None, Some(code)) => format!("exit status {code}"),
                (None, None) => "unknown status".to_string(),
            },
        };
        let last = self
            .stderr
            .lock()
            .ok()
            .and_then(|kept| kept.back().cloned());
        last.map_or(how.clone(), |line| {
            format!("{how}; last words: {}", cut(&line))
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.stuck {
            self.kill_and_wait();
        }
    }
}

fn cut(line: &str) -> String {
    line.chars().take(200).collect()
}
