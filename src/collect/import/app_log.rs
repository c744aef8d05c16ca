//! Logs of NCCL, vLLM, SGLang and the small CUDA samples, and the commands that started them: which transports were
//! chosen, what was switched off and why, what failed. Only lines with a known meaning are kept, each with its place.

use super::part::{Line, Part};
use crate::model::{
    pci::PciAddress,
    reading::Reading,
    snapshot::LogLine,
    ticket::{RemarkKind, Transport},
};
use std::collections::BTreeMap;

/// Most lines kept of one log.
const MOST_LINES: usize = 256;
/// Most device pairs and transports of one log.
const MOST_TRANSPORTS: usize = 4_096;

/// Marks of a symptom: all words of one row must be in the line.
const SYMPTOMS: &[(RemarkKind, &[&str])] = &[
    (
        RemarkKind::CustomAllReduceOff,
        &["ustom allreduce is disabled"],
    ),
    (
        RemarkKind::CustomAllReduceOff,
        &["ustom all-reduce is disabled"],
    ),
    (
        RemarkKind::CustomAllReduceOff,
        &["Setup Custom allreduce failed"],
    ),
    (
        RemarkKind::SharingFailed,
        &["custom_all_reduce.cuh", "invalid argument"],
    ),
    (
        RemarkKind::SharingFailed,
        &["custom_all_reduce", "CUDA error: invalid argument"],
    ),
    (RemarkKind::SharingFailed, &["pidfd_getfd"]),
    (RemarkKind::SharingFailed, &["IpcOpenMemHandle", "failed"]),
    (RemarkKind::SharingFailed, &["cudaIpc", "rror"]),
    (
        RemarkKind::SharingFailed,
        &["cuMemImportFromShareableHandle"],
    ),
    (RemarkKind::GpuInvisible, &["invalid device ordinal"]),
    (RemarkKind::PeerRefused, &["peer access is not supported"]),
    (
        RemarkKind::GpuInvisible,
        &["nvmlDeviceGetHandleByPciBusId", "ot Found"],
    ),
    (RemarkKind::ShmFull, &["No space left on device", "shm"]),
    (
        RemarkKind::ShmFull,
        &["No space left on device", "fallocate"],
    ),
    (RemarkKind::NotInitialised, &["system not yet initialized"]),
    (
        RemarkKind::Hang,
        &["Watchdog caught collective operation timeout"],
    ),
    // vLLM says so after a minute; compiling and loading take as long.
    (
        RemarkKind::Waiting,
        &["No available shared memory broadcast block found"],
    ),
    (RemarkKind::Hang, &["watchdog timeout"]),
    (RemarkKind::WrongData, &["Verification error @ element"]),
    (RemarkKind::WrongData, &["Out of bounds values", "FAILED"]),
    (RemarkKind::GpuLost, &["GPU is lost"]),
    (RemarkKind::GpuLost, &["fallen off the bus"]),
    (
        RemarkKind::PeersSwitchedOff,
        &["NCCL_P2P_DISABLE set by environment to 1"],
    ),
    (
        RemarkKind::PeersSwitchedOff,
        &["NCCL_P2P_LEVEL set by environment to LOC"],
    ),
    (RemarkKind::NcclWarning, &["NCCL WARN"]),
];

/// Parts of an engine's source where ranks open each other's buffers.
const SHARED_BUFFERS: &[&str] = &["custom_all_reduce"];
/// Lines of a traceback between such a place and the error that it ended in.
const TRACEBACK: u32 = 12;

/// Further lines that causes ask for, although they are no symptom by themselves.
const OF_INTEREST: &[&str] = &[
    "NVLS",
    "Multicast",
    "P2P access cache",
    "Check P2P Type",
    "expandable_segments",
    "is unavailable",
    "all-reduce backend",
    "allreduce backend",
    "Using network",
];

/// Whether a line is of such a log.
pub(super) fn is_line(line: &str) -> bool {
    let text = line.trim_start();
    line.contains("NCCL INFO")
        || line.contains("NCCL WARN")
        || line.contains("NCCL version ")
        || dated(text)
        || [
            "(EngineCore",
            "(VllmWorker",
            "(Worker",
            "(RayWorker",
            "(APIServer",
            "[rank",
        ]
        .iter()
        .any(|p| text.starts_with(p))
        || text.starts_with("Traceback (most recent call last)")
        || text.contains("custom_all_reduce.cuh")
        || text.contains("Verification error @ element")
        || text.contains("CUDA error: ")
        || text.starts_with("RuntimeError: ")
        || text.contains("Out of bounds values")
        || text.contains("server_args=ServerArgs(")
}

/// "INFO 03-20 23:20:24 ..." of vLLM, "[2026-03-20 23:20:24 TP0] ..." of SGLang.
fn dated(text: &str) -> bool {
    let level = ["INFO ", "WARNING ", "ERROR ", "DEBUG "]
        .iter()
        .find_map(|l| text.strip_prefix(l));
    if let Some(rest) = level {
        let b = rest.as_bytes();
        return b.len() > 5 && b[0].is_ascii_digit() && b[2] == b'-' && b[4].is_ascii_digit();
    }
    let b = text.as_bytes();
    b.len() > 20
        && b[0] == b'['
        && b[1].is_ascii_digit()
        && b[5] == b'-'
        && b[8] == b'-'
        && b[11] == b' '
}

/// Whether a line goes on with the message above it.
pub(super) fn continues(line: &str) -> bool {
    line.starts_with([' ', '\t'])
        || line.starts_with("Traceback")
        || line.starts_with("During handling of")
        || line.contains("Error: ")
        || line.starts_with("terminate called")
        || line.starts_with("Failed: ")
}

pub(super) fn read(file: &str, lines: &[Line]) -> Part {
    let mut part = Part::new(file, "log");
    let mut transports: BTreeMap<(u32, u32, String), Transport> = BTreeMap::new();
    let mut nccl = 0_usize;
    let mut left_out = 0_usize;
    // The last line of a traceback that names shared buffers; the error stands some lines below it.
    let mut sharing: Option<&Line> = None;
    for line in lines {
        let text = line.text.trim();
        if text.starts_with("File \"") && SHARED_BUFFERS.iter().any(|m| text.contains(m)) {
            sharing = Some(line);
        }
        let whole;
        let text = match sharing.filter(|s| line.number.saturating_sub(s.number) <= TRACEBACK) {
            Some(place) if text.contains("CUDA error: invalid argument") => {
                sharing = None;
                whole = format!("{text} ({})", place.text.trim());
                whole.as_str()
            }
            _ => text,
        };
        if text.contains("NCCL ") {
            nccl += 1;
            of_nccl(&mut part, &mut transports, line);
        }
        of_engine(&mut part, line);
        let symptom = SYMPTOMS
            .iter()
            .find(|(_, marks)| marks.iter().all(|m| text.contains(m)));
        if let Some((kind, _)) = symptom {
            part.remark(*kind, text, line, false);
        }
        if symptom.is_some() || OF_INTEREST.iter().any(|m| text.contains(m)) {
            // Ranks repeat each other: the first of equal texts is kept.
            let body = body_of(text);
            let known = part
                .snapshot
                .application_log
                .iter()
                .any(|l| body_of(&l.text) == body);
            if known || part.snapshot.application_log.len() >= MOST_LINES {
                left_out += usize::from(!known);
            } else {
                let source = part.at(line);
                part.snapshot.application_log.push(LogLine {
                    source,
                    text: text.chars().take(300).collect(),
                });
            }
        }
    }
    part.transports = transports.into_values().collect();
    let engine = part.launch.iter().find(|c| c.about == "engine");
    let name = match (engine, nccl) {
        (Some(engine), _) => format!("{} log", engine.value),
        (None, 0) => "application log".to_string(),
        (None, _) => "NCCL log".to_string(),
    };
    part.gave = format!(
        "{name}: {} lines with a known meaning",
        part.snapshot.application_log.len() + part.launch.len() + part.transports.len()
    );
    if left_out > 0 {
        part.gave.push_str(&format!("; {left_out} more left out"));
    }
    part
}

/// A line without the process, rank and time that stand before the message.
fn body_of(text: &str) -> &str {
    for mark in ["NCCL INFO ", "NCCL WARN ", ".py:"] {
        if let Some((_, rest)) = text.split_once(mark) {
            return rest;
        }
    }
    text
}

fn of_nccl(part: &mut Part, transports: &mut BTreeMap<(u32, u32, String), Transport>, line: &Line) {
    let text = line.text.as_str();
    if let Some((_, rest)) = text.split_once("NCCL version ") {
        let version = rest.split_whitespace().next().unwrap_or_default();
        part.started("NCCL version", version, line);
    }
    if let Some((name, rest)) = text.split_once(" set by environment to ") {
        let name = name.split_whitespace().last().unwrap_or_default();
        let value = rest.trim().trim_end_matches('.');
        environment(part, name, value, line);
    }
    if let Some((head, via)) = text.split_once(" via ")
        && let Some((_, ends)) = head.split_once(" : ")
        && let Some((from, to)) = ends.split_once(" -> ")
    {
        let to = to.split(" [").next().unwrap_or(to);
        if let (Some(from), Some(to)) = (in_brackets(from), in_brackets(to)) {
            let via: String = via
                .split_whitespace()
                .next()
                .unwrap_or_default()
                .chars()
                .take(60)
                .collect();
            let source = part.at(line);
            if transports.len() < MOST_TRANSPORTS {
                let entry = transports
                    .entry((from, to, via.clone()))
                    .or_insert(Transport {
                        devices: (from, to),
                        via,
                        channels: 0,
                        source,
                    });
                entry.channels = entry.channels.saturating_add(1);
            }
        }
    }
    if let Some((_, rest)) = text.split_once(" nvmlDev ")
        && let Some((index, rest)) = rest.split_once(" busId ")
    {
        let id = rest.split_whitespace().next().unwrap_or_default();
        let address = u64::from_str_radix(id, 16).ok().and_then(address_of);
        if let (Ok(index), Some(address)) = (index.trim().parse::<u32>(), address) {
            if let Some(gpu) = part.gpu_at(address) {
                gpu.nvml_index = Reading::Known(index);
                gpu.label = format!("GPU{index}");
            }
            part.cite(format!("GPU {address}"), format!("nvmlDev {index}"), line);
        }
        if let Some((_, ranks)) = text.split_once(" nranks ") {
            let ranks = ranks.split_whitespace().next().unwrap_or_default();
            part.started("ranks", ranks, line);
        }
    }
}

/// NCCL's bus id: domain, bus, device and function as one hexadecimal number.
fn address_of(id: u64) -> Option<PciAddress> {
    Some(PciAddress {
        domain: u32::try_from(id >> 20).ok()?,
        bus: (id >> 12 & 0xff) as u8,
        device: (id >> 4 & 0xff) as u8,
        function: (id & 0xf) as u8,
    })
    .filter(|a| a.device < 32 && a.function < 8)
}

/// 3 of "7[3]".
fn in_brackets(text: &str) -> Option<u32> {
    let inner = text.trim().split_once('[')?.1;
    inner.split(']').next()?.parse().ok().filter(|n| *n < 4096)
}

/// Remembers a variable that steers NCCL or an engine; names that hint at secrets are left out.
pub(super) fn environment(part: &mut Part, name: &str, value: &str, line: &Line) {
    let picked = crate::collect::system::steering_variables([(
        name.to_string(),
        value.chars().take(200).collect::<String>(),
    )]);
    for (name, value) in picked {
        part.cite(format!("environment {name}"), value.clone(), line);
        let known = part.snapshot.environment.iter().any(|(n, _)| *n == name);
        if !known && part.snapshot.environment.len() < 256 {
            part.snapshot.environment.push((name, value));
        }
    }
}

/// Settings in "name=value, name=value" dumps of engines.
const SETTINGS: &[&str] = &[
    "tensor_parallel_size",
    "tp_size",
    "pipeline_parallel_size",
    "disable_custom_all_reduce",
    "enforce_eager",
    "enable_symm_mem",
    "enable_torch_symm_mem",
    "enable_p2p_check",
    "dtype",
    "model",
    "model_path",
];

fn of_engine(part: &mut Part, line: &Line) {
    let text = line.text.as_str();
    let vllm = text.contains("Initializing a V1 LLM engine")
        || text.contains("Initializing an LLM engine")
        || text.contains("vLLM API server version")
        || text.contains("non-default args:");
    let sglang = text.contains("server_args=ServerArgs(");
    if vllm || sglang {
        part.started("engine", if vllm { "vLLM" } else { "SGLang" }, line);
        let version = text
            .split_once("(v")
            .and_then(|(_, r)| r.split(')').next())
            .or_else(|| text.split_once("server version ").map(|(_, r)| r.trim()));
        if let Some(version) = version.filter(|v| v.len() < 40) {
            part.started("engine version", version, line);
        }
        for name in SETTINGS {
            if let Some(value) = setting(text, name) {
                part.started(name, &value, line);
            }
        }
    }
    for mark in ["is using nccl==", "Using NCCL version "] {
        if let Some((_, version)) = text.split_once(mark) {
            let version = version.split_whitespace().next().unwrap_or_default();
            part.started("NCCL version", version, line);
        }
    }
}

/// The value of `name=` or `'name':` in a dump of settings.
fn setting(text: &str, name: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (at, skip) = text.match_indices(name).find_map(|(at, _)| {
        let whole = at == 0
            || bytes
                .get(at - 1)
                .is_some_and(|b| !b.is_ascii_alphanumeric() && *b != b'_');
        let rest = text.get(at + name.len()..)?;
        let skip = ["=", "': ", "\": "]
            .iter()
            .find(|s| rest.starts_with(**s))?;
        whole.then_some((at, skip.len()))
    })?;
    let rest = text.get(at + name.len() + skip..)?;
    let value = match rest.chars().next()? {
        quote @ ('\'' | '"') => rest.get(1..)?.split(quote).next()?,
        _ => rest
            .split([',', ')', '}', ' '])
            .next()?
            .trim_start_matches("torch."),
    };
    (!value.is_empty() && value.len() < 200).then(|| value.to_string())
}

/// What a pasted command line says: variables set before it, and flags of the engines. Whether it started an engine.
pub(super) fn read_command(part: &mut Part, command: &str, line: &Line) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    for word in &words {
        let word = word.trim_start_matches("export ");
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        let upper = name
            .bytes()
            .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        if upper && !name.is_empty() {
            environment(part, name, value.trim_matches(['"', '\'']), line);
        }
    }
    let engine = if command.contains("vllm serve") || command.contains("vllm.entrypoints") {
        "vLLM"
    } else if command.contains("sglang.launch_server") || command.contains("sglang serve") {
        "SGLang"
    } else {
        return false;
    };
    part.started("engine", engine, line);
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (flag, inline) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (*word, None),
        };
        let value = || inline.or_else(|| rest.clone().next().copied());
        match flag {
            "--tensor-parallel-size" | "-tp" | "--tp" | "--tp-size" => {
                if let Some(value) = value() {
                    part.started("tensor_parallel_size", value, line);
                }
            }
            "--disable-custom-all-reduce" => {
                part.started("disable_custom_all_reduce", "True", line)
            }
            "--model" | "--model-path" | "serve" => {
                if let Some(value) = value().filter(|v| !v.starts_with('-')) {
                    part.started("model", value, line);
                }
            }
            _ => {}
        }
    }
    true
}

/// What a line that a person wrote reports, sentence by sentence: it may hang and answer garbage.
pub(super) fn read_prose(part: &mut Part, line: &Line) {
    let sentences = line.text.split(". ").filter_map(reported);
    let mut kinds: Vec<RemarkKind> = Vec::new();
    for kind in sentences {
        if !kinds.contains(&kind) {
            kinds.push(kind);
            part.remark(kind, &line.text, line, true);
        }
    }
}

fn reported(sentence: &str) -> Option<RemarkKind> {
    let text = sentence.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|w| text.contains(w));
    // "change" is no "hang".
    let word = |words: &[&str]| {
        text.split(|c: char| !c.is_alphabetic())
            .any(|w| words.contains(&w))
    };
    Some(
        if has(&["!!!!", "garbage", "gibberish", "word salad", "nonsense"]) {
            RemarkKind::Garbage
        } else if has(&[
            "all zero",
            "zeros",
            "zeroed",
            "wrong data",
            "corrupt",
            "wrong result",
        ]) {
            RemarkKind::WrongData
        } else if word(&[
            "hang",
            "hangs",
            "hanging",
            "hung",
            "stuck",
            "freezes",
            "deadlock",
            "deadlocks",
        ]) || has(&["never returns", "never finishes"])
        {
            RemarkKind::Hang
        } else if has(&["custom all-reduce", "custom allreduce", "custom all reduce"]) {
            RemarkKind::CustomAllReduceOff
        } else if has(&["slow", "bandwidth is low", "throughput drops"]) {
            RemarkKind::Slow
        } else {
            return None;
        },
    )
}
