//! Runs the shipped binary on a simulated host and reads what it says.

use peerproof::{
    model::{
        case::{Outcome, Record, WrongKind},
        finding::{ConsumerState, Judgement},
        pair::OrderedPair,
        report::{Grading, Report},
    },
    render::json,
};
use std::{
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// No run of these tests may take longer: a run that does is a hang of peerproof itself.
const LIMIT: Duration = Duration::from_secs(240);

/// A scenario with what is planted in it.
#[derive(Clone)]
pub(crate) struct Host {
    scenario: String,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    program: PathBuf,
}

/// What a program said and how it ended.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    /// Without the line that says what the run will take, and without the launcher's own.
    pub(crate) stderr: String,
    /// How often each planted fault struck, as the launcher counted.
    #[allow(dead_code, reason = "read by the matrix alone")]
    pub(crate) struck: Vec<(String, u64)>,
    /// How long the run took on the modelled host, seconds, where `--clock` was asked for.
    #[allow(dead_code, reason = "read by one test")]
    pub(crate) modelled_s: Option<f64>,
}

pub(crate) fn peerproof() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_peerproof"))
}

/// The launcher, which lies beside the binary once the workspace is built.
pub(crate) fn launcher() -> PathBuf {
    let launcher = peerproof().with_file_name("simhost");
    let library = peerproof().with_file_name("libsimhost.so");
    assert!(
        launcher.is_file() && library.is_file(),
        "{} or {} is missing: run `cargo build --workspace` first",
        launcher.display(),
        library.display()
    );
    launcher
}

impl Host {
    pub(crate) fn new(scenario: &str) -> Host {
        Host {
            scenario: scenario.to_string(),
            options: Vec::new(),
            environment: Vec::new(),
            program: peerproof(),
        }
    }

    /// Runs this in the place of peerproof.
    #[allow(dead_code, reason = "asked by one test")]
    pub(crate) fn program(mut self, program: &std::path::Path) -> Host {
        self.program = program.to_path_buf();
        self
    }

    /// Plants a fault.
    pub(crate) fn fault(mut self, fault: &str) -> Host {
        self.options.extend(["--fault".into(), fault.into()]);
        self
    }

    /// Changes the scenario.
    pub(crate) fn set(mut self, setting: &str) -> Host {
        self.options.extend(["--set".into(), setting.into()]);
        self
    }

    /// Has the launcher say how long the run took on the modelled host.
    #[allow(dead_code, reason = "asked by one test")]
    pub(crate) fn clock(mut self) -> Host {
        self.options.push("--clock".into());
        self
    }

    /// Sets a variable of the operator's environment.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Host {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// `peerproof ARGUMENTS` on this host.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(launcher());
        command
            .args(["run", &self.scenario])
            .args(&self.options)
            .arg("--")
            .arg(&self.program)
            .args(arguments)
            .envs(self.environment.iter().cloned())
            .env_remove("NO_COLOR")
            .env_remove("COLUMNS");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        run(self.command(arguments))
    }

    /// `qualify --no-file --json ARGUMENTS`, read; the exit code agrees with the verdict.
    pub(crate) fn qualify(&self, arguments: &[&str]) -> Report {
        let mut all = vec!["qualify", "--no-file", "--json"];
        all.extend(arguments);
        self.read(&self.run(&all))
    }

    /// `measure --json ARGUMENTS`, read; the exit code agrees with the verdict.
    #[allow(dead_code, reason = "not asked by the matrix")]
    pub(crate) fn measure(&self, arguments: &[&str]) -> Report {
        let mut all = vec!["measure", "--json"];
        all.extend(arguments);
        self.read(&self.run(&all))
    }

    fn read(&self, run: &Run) -> Report {
        let report = json::read(&run.stdout).unwrap_or_else(|error| {
            panic!("{}: {error}\n{}\n{}", self.scenario, run.stdout, run.stderr)
        });
        assert_eq!(
            run.code,
            Some(i32::from(report.verdict.grading.exit_code())),
            "{}",
            summary(&report)
        );
        assert_eq!(run.stderr, "", "nothing to complain about");
        report
    }

    /// The same, where others than peerproof write to standard error.
    #[allow(dead_code, reason = "asked by one test")]
    pub(crate) fn qualify_noisily(&self, arguments: &[&str]) -> Report {
        let mut all = vec!["qualify", "--no-file", "--json"];
        all.extend(arguments);
        let run = self.run(&all);
        json::read(&run.stdout).unwrap_or_else(|error| panic!("{error}\n{}", run.stderr))
    }

    /// The same, with the seconds that it took on the modelled host.
    #[allow(dead_code, reason = "asked by one test")]
    pub(crate) fn qualify_clocked(self, arguments: &[&str]) -> (Report, f64) {
        let mut all = vec!["qualify", "--no-file", "--json"];
        all.extend(arguments);
        let host = self.clock();
        let run = host.run(&all);
        (host.read(&run), run.modelled_s.expect("a modelled time"))
    }

    /// The same, with how often each planted fault struck.
    #[allow(dead_code, reason = "asked by the matrix alone")]
    pub(crate) fn qualify_counting(&self, arguments: &[&str]) -> (Report, Vec<(String, u64)>) {
        let mut all = vec!["qualify", "--no-file", "--json"];
        all.extend(arguments);
        let run = self.run(&all);
        (self.read(&run), run.struck)
    }
}

/// Whether a line is the launcher's own.
fn ours(line: &str) -> bool {
    line.starts_with("simhost: fault ") || line.starts_with("simhost: modelled time ")
}

/// `fault TEXT struck N times`, read.
fn struck(line: &str) -> Option<(String, u64)> {
    let (fault, times) = line
        .strip_prefix("simhost: fault ")?
        .rsplit_once(" struck ")?;
    Some((fault.to_string(), times.split(' ').next()?.parse().ok()?))
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Run {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    finish(&mut child)
}

/// Waits for a child with piped output.
pub(crate) fn finish(child: &mut Child) -> Run {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        text
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > LIMIT {
            // The launcher passes SIGTERM on; peerproof's workers die with it.
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(child.id() as i32),
                nix::sys::signal::Signal::SIGTERM,
            );
            std::thread::sleep(Duration::from_secs(5));
            let _ = child.kill();
            panic!("not done after {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let complaints: String = complaints.join().unwrap();
    Run {
        code: status.code(),
        stdout: reader.join().unwrap(),
        struck: complaints.lines().filter_map(struck).collect(),
        modelled_s: complaints.lines().find_map(|line| {
            let time = line.strip_prefix("simhost: modelled time ")?;
            time.strip_suffix(" s")?.parse().ok()
        }),
        stderr: complaints
            .split_inclusive('\n')
            .filter(|line| !line.contains(" budget: ") && !ours(line))
            .collect(),
    }
}

/// Waits until `true`, at most a while.
pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < LIMIT, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes whose command line contains `word`, without zombies.
pub(crate) fn processes_with(word: &str) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let line = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let environment = String::from_utf8_lossy(&read("environ")).replace('\0', " ");
        if line.contains(word) || environment.contains(word) {
            found.push((pid, line));
        }
    }
    found
}

pub(crate) fn pair(source: u32, destination: u32) -> OrderedPair {
    OrderedPair::new(source, destination).unwrap()
}

/// Everything that counts against the host, one line each: for messages of failed assertions.
pub(crate) fn summary(report: &Report) -> String {
    let mut text = format!(
        "{:?} | {} | {}\n",
        report.verdict.grading, report.verdict.headline, report.verdict.cause
    );
    for record in &report.records {
        if !matches!(
            record.outcome,
            Outcome::Intact | Outcome::NotApplicable { .. }
        ) {
            text.push_str(&line(record));
            text.push('\n');
        }
    }
    text
}

/// A record in one line.
pub(crate) fn line(record: &Record) -> String {
    let detail = match &record.outcome {
        Outcome::Corrupt(c) => format!("{}: {}", c.kind, c.detail),
        other => format!("{other:?}"),
    };
    format!(
        "{} {} {} B {detail} {:?}",
        record.case.subject, record.case.mechanism, record.case.bytes, record.notes
    )
}

/// Records with wrong data, faults, hangs and deaths.
pub(crate) fn failures(report: &Report) -> Vec<&Record> {
    report
        .records
        .iter()
        .filter(|record| record.outcome.is_failure())
        .collect()
}

/// Kind of wrong of a record.
pub(crate) fn kind(record: &Record) -> Option<WrongKind> {
    record.outcome.corruption().map(|c| c.kind)
}

/// Asserts that nothing but cases of `pair` by `mechanism` failed, and that something of them did.
pub(crate) fn only(report: &Report, blamed: OrderedPair, mechanism: &str) {
    let failed = failures(report);
    assert!(!failed.is_empty(), "{}", summary(report));
    for record in failed {
        assert_eq!(
            (record.case.subject.pair(), record.case.mechanism.as_str()),
            (Some(blamed), mechanism),
            "{}",
            summary(report)
        );
    }
    assert_eq!(report.verdict.grading, Grading::Fail, "{}", summary(report));
    assert_eq!(
        report.verdict.worst_pair,
        Some(blamed),
        "{}",
        summary(report)
    );
    assert!(
        report
            .verdict
            .headline
            .starts_with(&format!("{blamed} {mechanism}: ")),
        "{}",
        report.verdict.headline
    );
}

/// Ids of the causes that are held.
pub(crate) fn indicted(report: &Report) -> Vec<&str> {
    report
        .findings
        .iter()
        .filter(|finding| finding.judgement == Judgement::Indicted)
        .map(|finding| finding.cause.as_str())
        .collect()
}

/// State of a consumer.
pub(crate) fn consumer(report: &Report, id: &str) -> ConsumerState {
    report
        .consumers
        .iter()
        .find(|consumer| consumer.id == id)
        .unwrap_or_else(|| panic!("no consumer {id}"))
        .state
}

/// Saves a report.
pub(crate) fn save(report: &Report, path: &Path) {
    let mut out = Vec::new();
    json::write(report, &mut out).unwrap();
    std::fs::write(path, out).unwrap();
}
