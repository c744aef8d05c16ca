//! `peerproof reduce`: all-reduces by algorithm and size, every sum judged, and timed.

use super::{Surroundings, console, exit::Stop, host, workload::Workload};
use crate::{
    advise::{self, Steps},
    collect::live::Depth,
    diagnose::{Evidence, reductions},
    gpu::kernels,
    model::{
        pair::GpuIndex,
        reduction::{Arrangement, Dtype, Launch, MOST_RANKS, Reduction},
        report::{Coverage, Report, SCHEMA_VERSION},
        snapshot::Snapshot,
    },
    probe::{
        nccl, plan,
        reduced::{self, Order},
        reduction::{self, Mailboxes, Request, Tuning, exact::Values},
    },
    profile::Profiles,
    render::{self, json},
};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                  peerproof reduce                                        every algorithm that all free GPUs can run\n  \
                  peerproof reduce --gpus 0,1 --bytes 12KiB --eager --graph   one size, both ways of launching\n  \
                  peerproof reduce --model glm-5.2 --tp 8 --batch 32 --report r.json   the sizes of a launch; 'recommend ... --reductions r.json' uses them")]
pub(super) struct Options {
    /// GPUs, a rank on each: indices, UUIDs or PCI addresses, separated by commas; all free ones when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    gpus: Option<Vec<String>>,
    /// Ranks of the launch whose decode steps are measured, on the first free GPUs, islands together, when --gpus names none.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), conflicts_with = "ranks")]
    tp: Option<u32>,
    #[command(flatten)]
    workload: Workload,
    /// Serving engine, where drafts are counted its way (`peerproof list`).
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Folder with profiles of your own, beside the built-in ones.
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    /// Algorithms, separated by commas (`peerproof list` has them); all that take so many ranks when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    algorithm: Option<Vec<String>>,
    /// Bytes of one rank's vector, separated by commas, KiB and MiB allowed ('512,8KiB,1MiB'); 512 to 16 MiB when not given
    /// and less on GPUs with little memory, or those of the model's steps.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, conflicts_with_all = ["model", "model_config", "hidden"])]
    bytes: Option<Vec<u64>>,
    /// Element types, separated by commas: fp16, bf16, fp32; the model's, else bf16, when not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = dtype)]
    dtype: Vec<Dtype>,
    /// Only as a captured graph, replayed, as when neither this nor --eager is given.
    #[arg(long)]
    graph: bool,
    /// Launched call by call; with --graph both.
    #[arg(long)]
    eager: bool,
    /// Ranks on one GPU, as streams of one process or as two processes; on several GPUs there is a rank on each.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=8))]
    ranks: Option<u32>,
    /// Where the ranks run: one process over all GPUs, or a process per GPU over CUDA IPC as engines run; both for a model,
    /// else one process, when not given.
    #[arg(long, value_enum, value_name = "HOW")]
    arrangement: Option<How>,
    /// Blocks of a rank's kernel; the algorithm's own number when not given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    blocks: Option<u32>,
    /// Threads of a block, a multiple of 32; the algorithm's own number when not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<u32>,
    /// Judged calls of each row beside the timed ones.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    calls: u32,
    /// Timed samples of each row; 0 takes no time.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(0..=1000))]
    samples: u32,
    /// The sum replaces the vector.
    #[arg(long)]
    in_place: bool,
    /// Any numbers instead of small integers: the last bits then depend on order and rounding, and are held to both.
    #[arg(long)]
    random: bool,
    /// Also use GPUs on which other processes run.
    #[arg(long)]
    shared: bool,
    /// Leave NCCL out, which runs beside the algorithms, in processes of its own, where libnccl.so.2 is found.
    #[arg(long, conflicts_with = "nccl")]
    no_nccl: bool,
    /// libnccl.so.2 to open instead of looking for one.
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// Print a report as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also write the report there.
    #[arg(long, visible_alias = "out", value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// One process over all GPUs.
    OneProcess,
    /// A process per GPU, memory opened by CUDA IPC handle.
    ProcessPerGpu,
    /// Both, one after the other.
    Both,
}

/// Sizes when none are named, bytes.
const SIZES: [u64; 9] = [
    512,
    2 << 10,
    8 << 10,
    32 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
];
/// How long a kernel waits for another rank, by its own clock; longer where processes take turns on one GPU.
const LIMIT: Duration = Duration::from_secs(2);
const SLICED: Duration = Duration::from_secs(10);
/// Calls of a row where two processes take turns on one GPU.
const SLICED_CALLS: u32 = 20;

pub(super) fn run(surroundings: &Surroundings, options: &Options) -> Result<u8, Stop> {
    let started = Instant::now();
    let started_at = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let algorithms = algorithms(options)?;
    check_workload(options)?;
    // Before minutes of work, not after.
    if let Some(report) = &options.report {
        super::qualify::check_report_file("--report", report)?;
    }
    let (session, snapshot) = host::read(surroundings, Depth::Full)?;
    host::require_gpu(&snapshot)?;
    let (gpus, left_out) = choose(&snapshot, options)?;
    let launch = launch(&snapshot, options, &gpus)?;
    let gpus = match &launch {
        Some(steps) if options.tp.is_some() => steps.gpus.iter().map(|gpu| gpu.0).collect(),
        _ => gpus,
    };
    crate::ffi::process::catch_interrupts();
    let plan = plan::build(
        &snapshot,
        &plan::Selection {
            gpus: gpus.clone(),
            mechanisms: Some(Vec::new()),
            // Its buffers serve nothing here.
            budget: plan::Budget::Quick,
            shared: options.shared,
            ..Default::default()
        },
    );
    let (mut remarks, mut notes) = (left_out, Vec::new());
    let work = Work::of(options, launch.as_ref());
    if let Some(steps) = &launch {
        notes.push(steps.sentence());
        notes.extend(steps.caveats.iter().cloned());
    }
    let mut rows = Vec::new();
    let mut authenticity = snapshot.authenticity;
    for order in orders(
        options,
        &work,
        &snapshot,
        (&gpus, &algorithms),
        &mut remarks,
    )? {
        let total = order.gpus.len();
        let mut emit = |row: Reduction| {
            let size = row.bytes;
            let (algorithm, how) = (&row.algorithm, row.arrangement.words());
            surroundings
                .console
                .progress(&format!("{total} ranks, {how}: {algorithm}, {size} bytes"));
            rows.push(row);
        };
        let seen = reduced::measure(&snapshot, &plan, &order, &mut emit);
        surroundings.console.quiet();
        authenticity = super::qualify::mark(authenticity, seen.map_err(Stop::inconclusive)?);
    }
    drop(session);
    if !options.no_nccl {
        let mut answer = nccl_rows(surroundings, (options, &work), &snapshot, &gpus, &rows)?;
        notes.append(&mut answer.notes);
        rows.append(&mut answer.reductions);
    }
    let mut report = Report {
        schema_version: SCHEMA_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_string(),
        kernels_sha256: kernels::sha256(),
        authenticity,
        started_at,
        took_ms: started.elapsed().as_secs_f64() * 1e3,
        arguments: std::env::args().skip(1).collect(),
        tested_gpus: gpus,
        ladder: Vec::new(),
        records: Vec::new(),
        observations: Vec::new(),
        reductions: rows,
        traffic: Vec::new(),
        crossovers: Vec::new(),
        notes,
        comparison: None,
        selftest: None,
        coverage: Coverage {
            left_out: remarks,
            ..Coverage::default()
        },
        findings: Vec::new(),
        consumers: Vec::new(),
        recommendations: Vec::new(),
        verdict: super::qualify::nothing_yet(),
        timings_ms: Vec::new(),
        worker_environment: Vec::new(),
        interrupted: crate::ffi::process::interrupted(),
        snapshot,
    };
    report.snapshot.authenticity = report.authenticity;
    report
        .snapshot
        .keep_cuda_claims(&[], "'reduce' asks for no claims");
    judge(&mut report);
    if let Some(file) = &options.report {
        super::file::tell_replaced(file);
        super::file::replace(file, |out| json::write(&report, out))
            .map_err(|error| Stop::usage(format!("--report: {}: {error}", file.display())))?;
    }
    if options.json {
        console::print(|out| json::write(&report, out))?;
    } else {
        let options = &surroundings.console.options;
        console::print(|out| render::reduce::write(&report, options, out))?;
    }
    Ok(report.verdict.grading.exit_code())
}

/// All that follows from the rows.
pub(super) fn judge(report: &mut Report) {
    reductions::flag(&mut report.reductions);
    let rows = &report.reductions;
    report.crossovers = reductions::crossovers(rows);
    report.coverage.planned = rows.len() as u32;
    report.coverage.ran = rows.iter().filter(|row| row.outcome.ran()).count() as u32;
    report.verdict = reductions::verdict(rows);
}

/// Algorithms that were named, or all.
fn algorithms(options: &Options) -> Result<Vec<String>, Stop> {
    let all = || reduction::ROSTER.iter().map(|algorithm| algorithm.id());
    let Some(named) = &options.algorithm else {
        return Ok(all().map(str::to_string).collect());
    };
    let mut seen = BTreeSet::new();
    for id in named {
        if reduction::by_id(id).is_none() {
            let known: Vec<&str> = all().collect();
            return Err(Stop::usage(format!(
                "--algorithm: no algorithm '{id}'; there are {}",
                known.join(", ")
            )));
        }
        if !seen.insert(id) {
            return Err(Stop::usage(format!("--algorithm: {id} is named twice")));
        }
    }
    Ok(named.clone())
}

/// GPUs, and what is left out of them.
fn choose(snapshot: &Snapshot, options: &Options) -> Result<(Vec<u32>, Vec<String>), Stop> {
    let chosen = host::choose_gpus(snapshot, options.gpus.as_deref())?;
    let (mut gpus, busy) = host::leave_out_busy(snapshot, chosen, options.shared);
    if gpus.is_empty() {
        return Err(Stop::inconclusive(format!(
            "no GPU is left: {}",
            busy.join("; ")
        )));
    }
    let mut left_out = busy;
    if let Some(tp) = options.tp {
        let most = MOST_RANKS;
        if tp > most {
            return Err(Stop::usage(format!(
                "--tp {tp}: an all-reduce takes {most} ranks at most"
            )));
        }
        let free = gpus.len();
        if options.gpus.is_none() && free < tp as usize {
            left_out.insert(0, format!("--tp {tp} takes as many GPUs, and {free} can be used here; --ranks {tp} in place of --tp runs the kernels on one"));
            return Err(Stop::inconclusive(left_out.join("; ")));
        }
        if options.gpus.is_none() && free > tp as usize {
            left_out.push(format!(
                "{} of {free} GPUs take no part: --tp {tp} (--gpus chooses them)",
                free - tp as usize
            ));
        }
        return Ok((gpus, left_out));
    }
    if options.ranks.is_some() && gpus.len() > 1 {
        if options.gpus.is_some() {
            return Err(Stop::usage(
                "--ranks puts several ranks on one GPU; --gpus names more than one",
            ));
        }
        let others = gpus.split_off(1);
        left_out.push(format!(
            "--ranks puts all ranks on GPU{}; {} other GPUs take no part",
            gpus.first().copied().unwrap_or_default(),
            others.len()
        ));
    }
    let most = MOST_RANKS as usize;
    if gpus.len() > most {
        if options.gpus.is_some() {
            return Err(Stop::usage(format!(
                "--gpus names {} GPUs; an all-reduce takes {most} at most",
                gpus.len()
            )));
        }
        let others = gpus.split_off(most);
        left_out.push(format!(
            "{} GPUs take no part: an all-reduce takes {most} at most (--gpus chooses them)",
            others.len()
        ));
    }
    Ok((gpus, left_out))
}

/// What is run, one arrangement after the other.
fn orders(
    options: &Options,
    work: &Work,
    snapshot: &Snapshot,
    (gpus, algorithms): (&[u32], &[String]),
    remarks: &mut Vec<String>,
) -> Result<Vec<Order>, Stop> {
    let one = gpus.len() == 1;
    let ranks: Vec<u32> = match gpus {
        [only] => vec![*only; options.ranks.unwrap_or(2) as usize],
        all => all.to_vec(),
    };
    let count = ranks.len() as u32;
    let (takes, not): (Vec<&String>, Vec<&String>) = algorithms
        .iter()
        .partition(|id| reduction::by_id(id).is_some_and(|a| a.takes(count)));
    if !not.is_empty() {
        let names: Vec<&str> = not.iter().map(|id| id.as_str()).collect();
        remarks.push(format!("not for {count} ranks: {}", names.join(", ")));
    }
    if takes.is_empty() {
        return Err(Stop::usage(format!(
            "none of the chosen algorithms runs over {count} ranks"
        )));
    }
    let memory = free_memory(snapshot, gpus);
    let sizes = sizes(work, memory, count, remarks)?;
    let arrangements: &[Arrangement] = match (work.arrangement, one) {
        (How::OneProcess, true) => &[Arrangement::StreamsOfOneGpu],
        (How::OneProcess, false) => &[Arrangement::OneProcess],
        (How::ProcessPerGpu, true) => &[Arrangement::ProcessesOfOneGpu],
        (How::ProcessPerGpu, false) => &[Arrangement::ProcessPerGpu],
        (How::Both, true) => &[Arrangement::StreamsOfOneGpu, Arrangement::ProcessesOfOneGpu],
        (How::Both, false) => &[Arrangement::OneProcess, Arrangement::ProcessPerGpu],
    };
    if arrangements.contains(&Arrangement::ProcessesOfOneGpu) && count != 2 {
        return Err(Stop::usage(
            "processes on one GPU are two: --ranks 2, or --arrangement one-process",
        ));
    }
    if one {
        remarks.push(format!(
            "{count} ranks share GPU{}: kernels are exercised, no link is",
            gpus.first().copied().unwrap_or_default()
        ));
    }
    let orders = arrangements.iter().map(|arrangement| {
        let sliced = *arrangement == Arrangement::ProcessesOfOneGpu;
        let apart = sliced || *arrangement == Arrangement::ProcessPerGpu;
        let host = |id: &&&String| {
            apart && reduction::by_id(id).is_some_and(|a| a.mailboxes() == Mailboxes::Host)
        };
        let (left, run): (Vec<&&String>, Vec<&&String>) = takes.iter().partition(host);
        for id in left {
            remarks.push(format!("{id} runs in one process only"));
        }
        Order {
            gpus: ranks.clone(),
            arrangement: *arrangement,
            request: Request {
                algorithms: run.into_iter().map(|id| (*id).clone()).collect(),
                dtypes: work.dtypes.clone(),
                sizes: sizes.clone(),
                launches: match (options.eager, options.graph) {
                    (true, true) => vec![Launch::Eager, Launch::Graph],
                    (true, false) => vec![Launch::Eager],
                    _ => vec![Launch::Graph],
                },
                in_place: vec![options.in_place],
                values: match options.random {
                    true => Values::Random,
                    false => Values::Integers,
                },
                calls: if sliced {
                    options.calls.min(SLICED_CALLS)
                } else {
                    options.calls
                },
                // Nothing is timed where the other rank has the GPU half of the time.
                samples: if sliced { 0 } else { options.samples },
                room: (memory / 16).min(256 << 20),
                tuning: Tuning {
                    blocks: options.blocks,
                    threads: options.threads,
                    words_up_to: None,
                },
                seed: seed(),
                limit: if sliced { SLICED } else { LIMIT },
            },
        }
    });
    Ok(orders.collect())
}

/// NCCL at the sizes and in the arrangements that ran, on the same GPUs.
fn nccl_rows(
    surroundings: &Surroundings,
    (options, work): (&Options, &Work),
    snapshot: &Snapshot,
    gpus: &[u32],
    ours: &[Reduction],
) -> Result<nccl::Answer, Stop> {
    let Some(first) = ours.first() else {
        return Ok(nccl::Answer {
            reductions: Vec::new(),
            notes: Vec::new(),
            authenticity: None,
        });
    };
    let address = |gpu: &u32| {
        let known = snapshot.gpus.get(*gpu as usize).and_then(|g| g.pci.known());
        let unknown =
            || Stop::inconclusive(format!("GPU{gpu} has no PCI address that could be read"));
        Ok((*gpu, *known.ok_or_else(unknown)?))
    };
    // One GPU holds several of our ranks; NCCL says that it has no such thing.
    let ranks = if gpus.len() == 1 { &first.gpus } else { gpus };
    let mut sizes: Vec<u64> = ours.iter().map(|row| row.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut arrangements: Vec<Arrangement> = Vec::new();
    let mut launches: Vec<Launch> = Vec::new();
    for row in ours {
        if !arrangements.contains(&row.arrangement) {
            arrangements.push(row.arrangement);
        }
        if !launches.contains(&row.launch) {
            launches.push(row.launch);
        }
    }
    let request = nccl::Request {
        gpus: ranks.iter().map(address).collect::<Result<_, Stop>>()?,
        arrangements,
        sizes,
        dtypes: work.dtypes.clone(),
        launches,
        in_place: vec![options.in_place],
        samples: options.samples.max(1),
        library: options.nccl.clone(),
    };
    let answer = nccl::run(&request, &mut |what| surroundings.console.progress(what));
    surroundings.console.quiet();
    Ok(answer)
}

fn seed() -> u64 {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    clock.map_or(1, |passed| passed.as_nanos() as u64)
}

/// Free memory of the GPU that has least, bytes; little where nobody says.
fn free_memory(snapshot: &Snapshot, gpus: &[u32]) -> u64 {
    let free = gpus.iter().filter_map(|gpu| {
        let gpu = snapshot.gpus.get(*gpu as usize)?;
        let used = gpu.memory_used_bytes.known().copied().unwrap_or(0);
        Some(gpu.memory_bytes.known()?.saturating_sub(used))
    });
    free.min().unwrap_or(1 << 30)
}

/// What is reduced, from the options and from the launch that they describe.
struct Work {
    sizes: Sizes,
    dtypes: Vec<Dtype>,
    arrangement: How,
}

enum Sizes {
    /// By the operator; none may be left out without an error.
    Named(Vec<u64>),
    /// Those of a launch's decode steps.
    OfLaunch(Vec<u64>),
    /// Those of the default.
    Usual,
}

impl Work {
    fn of(options: &Options, launch: Option<&Steps>) -> Work {
        let dtypes = match (&options.dtype[..], launch) {
            ([], Some(steps)) => vec![steps.dtype],
            ([], None) => vec![Dtype::Bf16],
            (named, _) => named.to_vec(),
        };
        Work {
            sizes: match (&options.bytes, launch) {
                (Some(named), _) => Sizes::Named(named.clone()),
                (None, Some(steps)) => Sizes::OfLaunch(steps.bytes()),
                (None, None) => Sizes::Usual,
            },
            dtypes,
            // Engines run a process per GPU, and what reduces through pinned memory runs in one process only.
            arrangement: options.arrangement.unwrap_or(match launch {
                Some(_) => How::Both,
                None => How::OneProcess,
            }),
        }
    }
}

/// Refuses options that mean nothing without each other, before anything is asked of the host.
fn check_workload(options: &Options) -> Result<(), Stop> {
    let workload = &options.workload;
    let usage = |text: String| Err(Stop::usage(text));
    if !workload.has_model() {
        let without = workload
            .load()
            .or(options.tp.map(|_| "--tp"))
            .or(options.engine.as_ref().map(|_| "--engine"))
            .or(options.profiles.as_ref().map(|_| "--profiles"));
        return match without {
            Some(name) => usage(format!(
                "{name} sizes the steps of a model: give --model, --model-config or --hidden"
            )),
            None => Ok(()),
        };
    }
    if workload.batch.is_none() {
        return usage("--batch is missing: how many requests are decoded together".to_string());
    }
    if options.dtype.len() > 1 {
        return usage(
            "--dtype: the steps of a launch have one type, and its size counts".to_string(),
        );
    }
    Ok(())
}

/// The decode steps that the options describe, over the GPUs that they will run on.
fn launch(snapshot: &Snapshot, options: &Options, gpus: &[u32]) -> Result<Option<Steps>, Stop> {
    if !options.workload.has_model() {
        return Ok(None);
    }
    let profiles = match &options.profiles {
        Some(folder) => Profiles::with_folder(folder),
        None => Profiles::embedded(),
    }
    .map_err(|error| Stop::usage(error.to_string()))?;
    // Ranks that share one GPU are no group of GPUs: only their number counts.
    let (ranks, share) = match (options.tp, gpus) {
        (Some(tp), _) => (tp, false),
        (None, [_]) => (options.ranks.unwrap_or(2), true),
        (None, all) => (all.len() as u32, false),
    };
    let evidence = (!share).then(|| Evidence::new(snapshot, &[], &[]));
    let mut request = options
        .workload
        .request(options.engine.as_deref().unwrap_or_default(), ranks)?;
    request.dtype = options.dtype.first().map(|dtype| dtype.name().to_string());
    let members = || gpus.iter().copied().map(GpuIndex).collect();
    match (share, &options.gpus) {
        (true, _) => {}
        (false, Some(_)) => request.group = Some(members()),
        (false, None) => request.candidates = members(),
    }
    advise::steps(evidence.as_ref(), &request, &profiles)
        .map(Some)
        .map_err(|error| Stop::usage(error.to_string()))
}

/// The sizes that run; those that do not fit are told, and refused where the operator named them.
fn sizes(
    work: &Work,
    memory: u64,
    ranks: u32,
    remarks: &mut Vec<String>,
) -> Result<Vec<u64>, Stop> {
    // Mailboxes hold two sets of vectors of every rank, and twice that where words carry their call.
    let most = memory / 8 / (4 * u64::from(ranks) + 4);
    let mut asked = match &work.sizes {
        Sizes::Named(sizes) | Sizes::OfLaunch(sizes) => sizes.clone(),
        Sizes::Usual => SIZES.to_vec(),
    };
    asked.sort_unstable();
    asked.dedup();
    if let Some(odd) = asked.iter().find(|bytes| !bytes.is_multiple_of(4)) {
        return Err(Stop::usage(format!(
            "a step of {odd} bytes is no whole multiple of 4, and kernels here move words of 4 bytes"
        )));
    }
    let fit: Vec<u64> = asked.iter().copied().filter(|n| *n <= most).collect();
    let Some(over) = asked.iter().find(|bytes| **bytes > most) else {
        return Ok(fit);
    };
    if matches!(work.sizes, Sizes::Named(_)) || fit.is_empty() {
        return Err(Stop::usage(format!(
            "{over} bytes with {ranks} ranks need more than an eighth of the free memory; {most} is the most here"
        )));
    }
    remarks.push(format!(
        "sizes above {} bytes: an eighth of the free memory does not hold them",
        fit.last().copied().unwrap_or(0)
    ));
    Ok(fit)
}

/// A number of bytes as people write it.
fn bytes(text: &str) -> Result<u64, String> {
    let bytes = super::size::bytes(text)?;
    match (4..=1 << 34).contains(&bytes) && bytes.is_multiple_of(4) {
        true => Ok(bytes),
        false => Err(format!(
            "'{text}': from 4 bytes to 16 GiB, whole multiples of 4"
        )),
    }
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let known = Dtype::ALL.into_iter().find(|dtype| dtype.name() == text);
    known.ok_or_else(|| format!("'{text}' is no element type; there are fp16, bf16 and fp32"))
}

fn threads(text: &str) -> Result<u32, String> {
    let threads: Option<u32> = text.parse().ok();
    threads
        .filter(|n| n.is_multiple_of(32) && (32..=512).contains(n))
        .ok_or_else(|| format!("'{text}': a multiple of 32 from 32 to 512"))
}
