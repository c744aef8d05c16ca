//! `simhost`: runs a program on a simulated host.
use simhost::launcher;
use simhost::scenario::{Scenario, shipped};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "\
Runs a program on a simulated multi-GPU host.

  simhost run SCENARIO [--fault FAULT]... [--set KEY.PATH=VALUE]... [--lib FILE] -- PROGRAM [ARGUMENT]...
  simhost tree SCENARIO FOLDER [--fault FAULT]... [--set KEY.PATH=VALUE]...
  simhost show SCENARIO [--fault FAULT]... [--set KEY.PATH=VALUE]...
  simhost list

SCENARIO is a shipped name or the path of a TOML file. PROGRAM is started with `--root FOLDER` before its arguments.
FAULT is SRC>DST:MECHANISM=KIND[:WHEN][:name=value]..., for example `2>5:ce_push=hang` or `*>*:any=zeroed:nth=3`.
  ends        GPU number, * or host
  mechanisms  ce_push ce_pull staged bounce_d2h bounce_h2d sm_load sm_store sm_store4 sm_store16 atomic
              host_load host_store host_atomic (kernels on pinned memory; the other end is host) own enable; ce, sm, any
              in front: ipc. vmm. pool. plain. (only through such memory; with enable, the call that opens it)
  kinds       zeroed ones dropped mirrored stale misrouted[:to=N] spilled[:bytes=N] shifted[:bytes=N]
              flipped[:mask=N:every=N] partial[:keep=N:hole=N] slow[:factor=N] hang stuck sticky[:code=N] death refusal[:code=N]
              (stuck: the call never returns and the process outlives SIGKILL, until the program that started it ends)
              late[:us=N] (a flag overtakes the stores before it) lost_flag; these two are of sm_store and host_store
  when        always once at=N nth=N after=N random=P[:seed=N], and min_offset=N min_bytes=N from=N until=N
              load=N (only while N other transfers of the run are under way; every transfer then takes 10 ms at least)
After the run, standard error has one line for each fault: `simhost: fault FAULT struck N times`; with --clock\nalso how long the run took on the modelled host: `simhost: modelled time N s`.";

const USAGE_ERROR: u8 = 64;
const FAILED: u8 = 70;

#[derive(Default)]
struct Options {
    faults: Vec<String>,
    settings: Vec<String>,
    library: Option<String>,
    clock: bool,
    words: Vec<String>,
    command: Vec<OsString>,
}

fn options(arguments: impl Iterator<Item = OsString>) -> Result<Options, String> {
    let mut o = Options::default();
    let mut arguments = arguments.peekable();
    while let Some(word) = arguments.next() {
        let word = word
            .into_string()
            .map_err(|w| format!("{} is no text", w.to_string_lossy()))?;
        if word == "--" {
            o.command = arguments.collect();
            break;
        }
        let mut value = || {
            arguments
                .next()
                .and_then(|v| v.into_string().ok())
                .ok_or_else(|| format!("{word} needs a value"))
        };
        match word.as_str() {
            "--fault" => o.faults.push(value()?),
            "--set" => o.settings.push(value()?),
            "--lib" => o.library = Some(value()?),
            "--clock" => o.clock = true,
            w if w.starts_with("--") => return Err(format!("no option {w}")),
            _ => o.words.push(word),
        }
    }
    Ok(o)
}

fn run() -> Result<u8, (u8, String)> {
    let usage = |e: String| (USAGE_ERROR, format!("{e}\n\n{USAGE}"));
    let o = options(std::env::args_os().skip(1)).map_err(usage)?;
    let words: Vec<&str> = o.words.iter().map(String::as_str).collect();
    let resolve = |name: &str| {
        Scenario::resolve(name, &o.settings, &o.faults).map_err(|e| (USAGE_ERROR, e.0))
    };
    match words.as_slice() {
        ["list"] => {
            for name in shipped::names() {
                println!("{name:28} {}", resolve(name)?.description);
            }
            Ok(0)
        }
        ["show", name] => {
            print!("{}", resolve(name)?.to_toml().map_err(|e| (FAILED, e.0))?);
            Ok(0)
        }
        ["tree", name, folder] => {
            let scenario = resolve(name)?;
            let folder = Path::new(folder);
            std::fs::create_dir_all(folder)
                .and_then(|()| simhost::tree::write(&scenario, folder))
                .map_err(|e| (FAILED, format!("{}: {e}", folder.display())))?;
            Ok(0)
        }
        ["run", name] => {
            let scenario = resolve(name)?;
            let (program, arguments) = o
                .command
                .split_first()
                .ok_or_else(|| usage("no program after --".into()))?;
            let library = match &o.library {
                Some(path) => path.into(),
                None => launcher::find_library().map_err(|e| (FAILED, e.0))?,
            };
            let status = launcher::run(&scenario, &library, (program, arguments), o.clock)
                .map_err(|e| (FAILED, e.0))?;
            Ok(launcher::exit_code(status).clamp(0, 255) as u8)
        }
        ["help"] => {
            println!("{USAGE}");
            Ok(0)
        }
        _ => Err(usage("nothing that can be done".into())),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => ExitCode::from(code),
        Err((code, message)) => {
            eprintln!("simhost: {message}");
            ExitCode::from(code)
        }
    }
}
