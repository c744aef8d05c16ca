//! Runs a program on a scenario: writes the scenario's tree into a private folder, puts the look-alike libraries first on
//! the library path, and passes the program's end through.
use crate::scenario::{Error, Scenario, never_strikes};
use crate::topology::Topology;
use crate::world::{SCENARIO_VARIABLE, modelled_ns, strikes_of};
use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// File name of the library.
pub const LIBRARY: &str = "libsimhost.so";
const NAMES: [&str; 4] = [
    "libcuda.so",
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnccl.so.2",
];
const PASSED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// A scenario laid out in a folder of its own, which goes away with the value.
pub struct Stage {
    folder: PathBuf,
}

impl Stage {
    /// Lays out a scenario for `library`.
    pub fn new(scenario: &Scenario, library: &Path) -> Result<Self, Error> {
        let library = std::path::absolute(library)
            .map_err(|e| Error(format!("{}: {e}", library.display())))?;
        if !library.is_file() {
            return Err(Error(format!(
                "{} is not there; `cargo build` makes it",
                library.display()
            )));
        }
        let stage = Self {
            folder: private_folder().map_err(|e| {
                Error(format!(
                    "no private folder below {}: {e}",
                    std::env::temp_dir().display()
                ))
            })?,
        };
        let lay_out = || -> std::io::Result<()> {
            std::fs::create_dir(stage.root())?;
            crate::tree::write(scenario, &stage.root())?;
            std::fs::create_dir(stage.folder.join("lib"))?;
            for name in NAMES {
                symlink(&library, stage.folder.join("lib").join(name))?;
            }
            Ok(())
        };
        lay_out().map_err(|e| Error(format!("{}: {e}", stage.folder.display())))?;
        std::fs::write(stage.scenario(), scenario.to_toml()?)
            .map_err(|e| Error(format!("{}: {e}", stage.scenario().display())))?;
        Ok(stage)
    }

    /// Folder with `hwloc.xml`, `sys`, `proc` and `dev`: the argument of `--root`.
    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The resolved scenario.
    pub fn scenario(&self) -> PathBuf {
        self.folder.join("scenario.toml")
    }

    /// Folder with the libraries under the names that programs open.
    pub fn libraries(&self) -> PathBuf {
        self.folder.join("lib")
    }

    /// Sets a program up to run on the scenario.
    pub fn equip(&self, command: &mut Command) {
        let mut path: OsString = self.libraries().into();
        if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|v| !v.is_empty()) {
            path.push(":");
            path.push(old);
        }
        command
            .env("LD_LIBRARY_PATH", path)
            .env(SCENARIO_VARIABLE, self.scenario());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn private_folder() -> std::io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700);
    loop {
        let name = format!(
            "simhost-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::SeqCst)
        );
        let path = std::env::temp_dir().join(name);
        match builder.create(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
}

/// Finds the library: beside the running program, above it, or in `deps` beside or above it.
pub fn find_library() -> Result<PathBuf, Error> {
    let program = std::env::current_exe().map_err(|e| Error(format!("own path: {e}")))?;
    let here = program.parent().unwrap_or(Path::new("."));
    let up = here.join("..");
    let places = [
        here.to_path_buf(),
        up.clone(),
        here.join("deps"),
        up.join("deps"),
    ];
    places
        .iter()
        .map(|p| p.join(LIBRARY))
        .find(|p| p.is_file())
        .ok_or_else(|| {
            Error(format!(
                "{LIBRARY} lies neither in {} nor above it; `cargo build` makes it",
                here.display()
            ))
        })
}

static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: i32) {
    let child = CHILD.load(Ordering::SeqCst);
    if child > 0 {
        // SAFETY: kill may be called in a signal handler.
        unsafe { libc::kill(child, signal) };
    }
}

/// Faults that cannot strike on the scenario, each with the reason.
pub fn idle_faults(scenario: &Scenario) -> Result<Vec<String>, Error> {
    let topology = Topology::new(scenario)?;
    let say = |f: crate::scenario::Fault| {
        let reason = never_strikes(&f, scenario, &topology)?;
        Some(format!("fault {} can never strike: {reason}", f.text))
    };
    Ok(scenario.faults()?.into_iter().filter_map(say).collect())
}

/// One line for each planted fault: how often it struck, in all processes of the run.
fn struck(scenario: &Scenario, stage: &Stage) -> Vec<String> {
    match strikes_of(&stage.scenario(), scenario.faults.len()) {
        Ok(counts) => scenario
            .faults
            .iter()
            .zip(counts)
            .map(|(fault, n)| format!("fault {fault} struck {n} times"))
            .collect(),
        Err(e) => vec![format!("how often the faults struck is not known: {e}")],
    }
}

/// Runs `program --root DIR arguments...` on the scenario and waits for it. Faults that cannot strike are said on
/// standard error before, and how often each one struck after; with `clock`, the modelled time too. Signals that would end the launcher go to the
/// program, in a process group of its own so that a terminal's Ctrl-C arrives once.
pub fn run(
    scenario: &Scenario,
    library: &Path,
    (program, arguments): (&OsString, &[OsString]),
    clock: bool,
) -> Result<ExitStatus, Error> {
    let stage = Stage::new(scenario, library)?;
    for line in idle_faults(scenario)? {
        eprintln!("simhost: {line}");
    }
    let mut command = Command::new(program);
    command.arg("--root").arg(stage.root()).args(arguments);
    stage.equip(&mut command);
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in PASSED {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    for signal in PASSED {
        let handler: extern "C" fn(i32) = pass_on;
        // SAFETY: the handler only calls kill.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    // SAFETY: whether standard input is a terminal; a program that reads from it must stay in the foreground group.
    let terminal = unsafe { libc::isatty(0) } == 1;
    if !terminal {
        command.process_group(0);
    }
    let mut child = command
        .spawn()
        .map_err(|e| Error(format!("{}: {e}", program.to_string_lossy())))?;
    if !terminal {
        CHILD.store(child.id() as i32, Ordering::SeqCst);
    }
    let status = child
        .wait()
        .map_err(|e| Error(format!("{}: {e}", program.to_string_lossy())));
    CHILD.store(0, Ordering::SeqCst);
    if !scenario.faults.is_empty() {
        for line in struck(scenario, &stage) {
            eprintln!("simhost: {line}");
        }
    }
    if clock {
        match modelled_ns(&stage.scenario()) {
            Ok(ns) => eprintln!("simhost: modelled time {:.3} s", ns as f64 / 1e9),
            Err(e) => eprintln!("simhost: the modelled time is not known: {e}"),
        }
    }
    status
}

/// Exit code of a program as a shell would show it: 128 plus the signal where one ended it.
pub fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
