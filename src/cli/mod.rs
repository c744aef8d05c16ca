//! The command line: what people type, and which exit code they get. The only floor that prints or reads the
//! environment of the operator.

mod again;
mod bench;
mod bundle;
mod console;
mod demo;
mod diagnose;
mod diff;
mod exit;
mod explain;
mod file;
mod gate;
mod generate;
mod host;
mod list;
mod map;
mod measure;
mod nccl;
mod qualify;
mod recommend;
mod reduce;
mod render;
mod selftest;
mod size;
mod verdict;
mod workload;

use crate::{collect, ffi::process, probe};
use clap::{Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode};

/// Proves, for every ordered pair of GPUs of a host, that the bytes the owner holds are the bytes the writer sent; says
/// why where they are not, and what a serving engine should be launched with.
#[derive(Debug, Parser)]
#[command(
    name = "peerproof",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 pass, 1 warn, 2 fail, 3 inconclusive or nothing tested, 64 usage, 70 peerproof itself failed.\n\
                  \n\
                  Examples:\n  \
                  peerproof qualify                     test this host, write a report file\n  \
                  peerproof qualify --prolog            the same for a scheduler: one line, exit code 0 or 1\n  \
                  peerproof map                         what joins the GPUs, without testing\n  \
                  peerproof map --from topo.txt         the same from a pasted 'nvidia-smi topo -m' or an XML file\n  \
                  peerproof measure                     rates and latencies of all copies, alone and at once\n  \
                  peerproof recommend --engine vllm --model qwen3-32b --tp 4 --batch 32 --from report.json\n  \
                  peerproof diagnose ticket.txt log.txt what pasted nvidia-smi, lspci, dmesg and engine logs tell\n  \
                  peerproof render report.json --out report.html  a saved report as one page\n  \
                  peerproof diff good.json bad.json     what differs between two hosts, or two days\n  \
                  peerproof demo                        a simulated host, no GPU needed"
)]
struct Arguments {
    /// Read /sys, /proc, the kernel log and hwloc from below this folder (simulated hosts).
    #[arg(long, global = true, hide = true, value_name = "DIR")]
    root: Option<PathBuf>,
    /// When to use colour: auto (a terminal, and NO_COLOR unset), always or never.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        value_name = "WHEN",
        hide_possible_values = true,
        display_order = 900
    )]
    color: console::Color,
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Test this host: every GPU alone, then every ordered pair, rung by rung; verdict, report file, exit code.
    Qualify(qualify::Options),
    /// Show what joins the GPUs of this host or of a file: tree, matrix, islands, fabric class. Tests nothing.
    Map(map::Options),
    /// Plant every kind of wrong data on one GPU and see that the checker finds and names it.
    Selftest(selftest::Options),
    /// Measure the kernels against a plain device copy, and the host link, on one GPU.
    Bench(bench::Options),
    /// Run all-reduces by algorithm and size: every sum judged to the bit on every rank, and timed.
    Reduce(Box<reduce::Options>),
    /// Measure copies, latencies and what runs at once, on three kinds of streams, against what the links should carry.
    Measure(measure::Options),
    /// Say what to launch a serving engine with: all-reduce backend, workspace size, flags and their reasons.
    Recommend(Box<recommend::Options>),
    /// Say what pasted outputs and logs, or a report, tell of a host: what is certain, what is suspected, which command next.
    Diagnose(diagnose::Options),
    /// Write a saved report in another form: text, JSON, one HTML page, Markdown, JUnit, Prometheus metrics.
    Render(render::Options),
    /// Say what differs between two reports: sister hosts, before and after a change, two days.
    Diff(diff::Options),
    /// Pack a report and the files behind it into one archive for support, with names and addresses replaced.
    Bundle(bundle::Options),
    /// Show a verdict that 'qualify --verdict-file' wrote, or check that it still holds for this host.
    Verdict(verdict::Options),
    /// Explain a cause (what it looks like, why, what splits it from others, the fix and its dangers) or a term.
    Explain(explain::Options),
    /// List what peerproof knows: mechanisms, causes, engines, models, forms of a report.
    #[command(after_help = "Example:\n  \
                      peerproof list | grep ipc")]
    List,
    /// Run a command on a simulated host, for people without the hardware; everything says SIMULATED.
    Demo(demo::Options),
    /// Write man pages or shell completions into a folder.
    Generate(generate::Options),
    /// Print the JSON Schema of the report.
    #[command(hide = true)]
    Schema,
    /// Protocol worker (not for people).
    #[command(hide = true, name = probe::pool::WORKER)]
    Worker,
    /// Protocol worker (not for people).
    #[command(hide = true, name = probe::pool::RANK)]
    Rank {
        /// Number of the inherited line over which descriptors pass.
        line: i32,
    },
    /// Protocol worker (not for people).
    #[command(hide = true, name = probe::nccl::NCCL)]
    NcclWorker,
    /// NCCL's all-reduce alone, as JSON rows.
    #[command(hide = true)]
    NcclBench(nccl::Options),
    /// Protocol worker (not for people).
    #[command(hide = true, name = collect::session::COLLECTOR)]
    Collector,
}

/// What a command needs from its surroundings.
struct Surroundings {
    roots: collect::live::Roots,
    console: console::Console,
}

/// The program.
pub fn main() -> ExitCode {
    process::default_sigpipe();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(mut error) => {
            let asked = !error.use_stderr();
            if !asked {
                gate::listen_for_prolog();
            }
            hide_hidden(&mut error);
            // Nothing to do about a closed standard error.
            let _ = error.print();
            return if asked {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(gate::stopped("wrong command line", exit::USAGE))
            };
        }
    };
    match std::panic::catch_unwind(|| run(arguments)) {
        Ok(code) => ExitCode::from(code),
        Err(_) => {
            console::complain(
                "this is a defect of peerproof, not of the host; nothing was concluded",
            );
            ExitCode::from(gate::stopped("a defect of peerproof", exit::FAILED))
        }
    }
}

/// Takes hidden options out of what an error suggests: they are not for people.
fn hide_hidden(error: &mut clap::Error) {
    use clap::{
        CommandFactory,
        error::{ContextKind, ContextValue},
    };
    let command = Arguments::command();
    let hidden: Vec<String> = command
        .get_arguments()
        .filter(|a| a.is_hide_set())
        .filter_map(|a| Some(format!("--{}", a.get_long()?)))
        .collect();
    let names = |text: &str| {
        hidden
            .iter()
            .any(|h| text.split('=').next() == Some(h.as_str()))
    };
    let suggested = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(text)) => names(text),
        Some(ContextValue::Strings(texts)) => texts.iter().any(|t| names(t)),
        _ => false,
    };
    if suggested {
        error.remove(ContextKind::SuggestedArg);
    }
}

fn run(arguments: Arguments) -> u8 {
    let surroundings = Surroundings {
        roots: collect::live::Roots {
            root: arguments.root,
        },
        console: console::Console::new(arguments.color),
    };
    let result = match arguments.command {
        Command::Qualify(options) => qualify::run(&surroundings, &options),
        Command::Map(options) => map::run(&surroundings, &options),
        Command::Selftest(options) => selftest::run(&surroundings, &options),
        Command::Bench(options) => bench::run(&surroundings, &options),
        Command::Reduce(options) => reduce::run(&surroundings, &options),
        Command::Measure(options) => measure::run(&surroundings, &options),
        Command::Recommend(options) => recommend::run(&surroundings, &options),
        Command::Diagnose(options) => diagnose::run(&surroundings, &options),
        Command::Render(options) => render::run(&surroundings, &options),
        Command::Diff(options) => diff::run(&surroundings, &options),
        Command::Bundle(options) => bundle::run(&surroundings, &options),
        Command::Verdict(options) => verdict::run(&surroundings, &options),
        Command::Explain(options) => explain::run(&surroundings, &options),
        Command::List => list::run(),
        Command::Demo(options) => demo::run(&options),
        Command::Generate(options) => generate::run(&options),
        Command::Schema => console::print(|out| {
            serde_json::to_writer_pretty(&mut *out, &crate::render::json::schema())?;
            writeln!(out)
        }),
        Command::Worker => protocol(probe::worker::serve(
            std::io::stdin().lock(),
            std::io::stdout(),
        )),
        Command::Rank { line } => protocol(probe::rank::serve(
            line,
            std::io::stdin().lock(),
            std::io::stdout(),
        )),
        Command::NcclWorker => protocol(probe::nccl::worker::serve(
            std::io::stdin().lock(),
            std::io::stdout(),
        )),
        Command::NcclBench(options) => nccl::run(&surroundings, &options),
        Command::Collector => protocol(collect::session::serve(
            std::io::stdin().lock(),
            std::io::stdout(),
        )),
    };
    match result {
        Ok(code) => code,
        Err(stop) => {
            console::complain(&stop.message);
            gate::stopped(&stop.message, stop.code)
        }
    }
}

fn protocol(served: std::io::Result<()>) -> Result<u8, exit::Stop> {
    served
        .map(|()| 0)
        .map_err(|error| exit::Stop::failed(&error.to_string()))
}
