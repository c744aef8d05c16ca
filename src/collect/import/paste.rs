//! Pasted text as tickets have it: several outputs in one file, with prompts, colour codes, carriage returns and prose
//! between them. Each part is recognised by its content and read by its reader; lines that no reader knows are named.

use super::{
    app_log,
    detect::{self, decode_lenient},
    error::ImportError,
    host_text::{self, Domains},
    lspci, lspci_tree, merge,
    part::{Line, Part},
    smi_query, smi_table, topo_table, topo_text,
};
use crate::model::{
    pci::PciAddress,
    snapshot::{Origin, Snapshot},
    ticket::{Input, Ticket, Unread},
};

/// Most text of one file, in bytes.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Most parts of one file.
const MOST_SECTIONS: usize = 512;
/// Most sentences of a person that are kept.
const MOST_SENTENCES: usize = 64;
/// Most ranges of unread lines that are named.
const MOST_UNREAD: usize = 128;

/// Most tables that are told not to be whole.
const MOST_INCOMPLETE: usize = 64;

/// What several files give together.
#[derive(Debug)]
pub struct Pasted {
    /// The host, as far as the files show it; conflicts are in `topology.disagreements`.
    pub snapshot: Snapshot,
    /// What was read from where.
    pub ticket: Ticket,
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Matrix,
    Query,
    Table,
    Links,
    Lspci,
    Tree,
    KernelLog,
    CommandLine,
    Cpu,
    GroupTypes,
    Driver,
    AppLog,
    /// Known, and of no use here: why.
    Other(&'static str),
}

/// Reads files that tell of one host. The kind of each, and of each part of it, is told by its content. `base` is the
/// snapshot of a report that is among the inputs: pasted texts fill what it lacks.
///
/// # Errors
/// A file that is no text, too large, or a damaged document of a known kind. Text that is not understood is no error: it
/// is named in [`Ticket::unread`].
pub fn read_all(
    files: &[(String, Vec<u8>)],
    base: Option<(String, Snapshot)>,
) -> Result<Pasted, ImportError> {
    let mut ticket = Ticket::default();
    let mut parts: Vec<(String, Part)> = Vec::new();
    let mut domains = Domains::default();
    for (name, bytes) in files {
        let text = decode_lenient(name, bytes)?;
        if text.trim_start().starts_with('<') || text.trim_start().starts_with('{') {
            let snapshot = detect::read(name, bytes)?;
            let mut part = Part::new(name, "document");
            part.gave = format!("{} GPUs", snapshot.gpus.len());
            let kind = match &snapshot.origin {
                Origin::Recorded { format, .. } => format.clone(),
                Origin::Live => "snapshot".to_string(),
            };
            part.snapshot = snapshot;
            ticket.inputs.push(Input {
                source: name.clone(),
                kind,
                gave: part.gave.clone(),
            });
            parts.push((name.clone(), part));
            continue;
        }
        if text.len() > MAX_TEXT_BYTES {
            return Err(ImportError::whole(
                name,
                format!(
                    "{} bytes of text; cut it down to the outputs that matter",
                    text.len()
                ),
            ));
        }
        file(name, &text, &mut domains, &mut parts, &mut ticket)?;
    }
    let snapshot = merge::join(parts, base, &domains, &mut ticket);
    Ok(Pasted { snapshot, ticket })
}

/// Commands whose name at a prompt marks it as one.
const COMMANDS: &[&str] = &[
    "nvidia-smi",
    "lspci",
    "cat ",
    "dmesg",
    "journalctl",
    "grep ",
    "sudo ",
    "lscpu",
    "uname",
    "for ",
    "ls ",
    "df ",
    "numactl",
    "vllm ",
    "python",
    "NCCL_",
    "CUDA_",
    "docker ",
    "systemd-detect-virt",
    "hostname",
    "export ",
    "peerproof",
    "lstopo",
    "mpirun",
    "torchrun",
    "./",
    "VLLM_",
    "SGLANG_",
    "env ",
];

/// The command of a line that shows a prompt: "$ cmd", "user@host:~# cmd", "[user@host dir]$ cmd".
fn prompt(line: &str) -> Option<&str> {
    let head_end = line
        .char_indices()
        .take(80)
        .find(|(at, c)| {
            matches!(c, '$' | '#' | '%') && line.get(at + 1..).is_some_and(|r| r.starts_with(' '))
        })?
        .0;
    let command = line.get(head_end + 2..)?.trim();
    let head = line.get(..head_end)?.trim();
    // Before the sign stands nothing, or a name with an @, or a bracket.
    let like_prompt = head.is_empty() || head.contains('@') || head.ends_with([']', ')', '~']);
    let command = command.strip_prefix("sudo ").unwrap_or(command);
    (like_prompt && COMMANDS.iter().any(|c| command.starts_with(c))).then_some(command)
}

/// Whether a line is the kernel's command line: as boot loaders begin it, with the root that they give it, or parameters
/// alone with one among them that people send it for.
pub(super) fn is_command_line(text: &str) -> bool {
    let text = text.trim();
    let words = || text.split_whitespace();
    let has_root =
        words().any(|w| w.starts_with("root=")) && words().any(|w| w == "ro" || w == "rw");
    let parameter = |word: &str| {
        let name = word.split('=').next().unwrap_or(word);
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        !name.is_empty() && name.chars().all(fits)
    };
    let telling = |word: &str| {
        let told = [
            "intel_iommu=",
            "amd_iommu=",
            "iommu=",
            "iommu.",
            "pcie_acs_override=",
            "pci=disable_acs_redir=",
            "pci=config_acs=",
            "pci=noacs",
            "nvidia.NVreg_",
        ];
        told.iter().any(|name| word.starts_with(name))
    };
    // A sentence has words that are no parameters: "we boot with iommu=pt already".
    let flag = |word: &str| {
        word.contains('=')
            || word.contains('.')
            || [
                "ro",
                "rw",
                "quiet",
                "splash",
                "nosplash",
                "rhgb",
                "nomodeset",
                "debug",
                "--",
            ]
            .contains(&word)
            || word.starts_with("no") && word.len() > 4
    };
    let sentence = text.ends_with('.') || !words().all(flag);
    text.starts_with("BOOT_IMAGE=")
        || has_root
        || !sentence && words().all(parameter) && words().any(telling)
}

/// The kind that a line begins or clearly belongs to.
fn kind_of(line: &str) -> Option<Kind> {
    let text = line.trim();
    let starts = |p: &str| text.starts_with(p);
    Some(if text.is_empty() {
        return None;
    } else if topo_table::is_line(line) {
        Kind::Matrix
    } else if is_date(text)
        || starts("| NVIDIA-SMI ")
        || starts("+---")
        || starts("|===")
        || starts("|---")
        || starts("+===")
    {
        Kind::Table
    } else if text.contains("NVSMI LOG")
        || (starts("Driver Version") && text.contains(" : "))
        || text
            .strip_prefix("GPU ")
            .is_some_and(|a| a.contains('.') && a.parse::<PciAddress>().is_ok())
    {
        Kind::Query
    } else if starts("GPU ") && text.contains("(UUID:")
        || (starts("Link ") && (text.ends_with("GB/s") || text.contains("Remote Device")))
    {
        Kind::Links
    } else if lspci::is_head(line) {
        Kind::Lspci
    } else if lspci_tree::is_line(line) {
        Kind::Tree
    } else if app_log::is_line(line) {
        Kind::AppLog
    } else if is_kernel_line(text) {
        Kind::KernelLog
    } else if starts("GRUB_CMDLINE_LINUX") {
        Kind::Other(
            "what /etc/default/grub asks of the next boot, which is not what runs; give cat /proc/cmdline",
        )
    } else if is_command_line(text) {
        Kind::CommandLine
    } else if host_text::group_type(text).is_some() {
        Kind::GroupTypes
    } else if starts("ResmanDebugLevel:")
        || starts("RegistryDwords:")
        || starts("options nvidia ")
        || starts("NVRM version:")
        || starts("RmLogonRC:")
    {
        Kind::Driver
    } else if (starts("Architecture:") && text.contains("  "))
        || starts("Hypervisor vendor:")
        || (starts("processor") && text.contains("\t: "))
        || starts("flags\t")
        || (starts("Flags:") && text.contains(" fpu "))
    {
        Kind::Cpu
    } else if starts("available: ") && text.contains(" nodes ") {
        Kind::Other(
            "numactl -H: NUMA nodes alone tell nothing of peers; nvidia-smi topo -m has them beside the GPUs",
        )
    } else if starts("#gpu\tbus_id") || text.contains("# peer access reported by CUDA") {
        Kind::Other(
            "a table of GPUs with CUDA's peer answers; give nvidia-smi topo -p2p r and nvidia-smi -q",
        )
    } else if starts("# bdf vendor device") {
        Kind::Other("a listing of sysfs PCI devices; give sudo lspci -vvv")
    } else if starts("Machine (") || starts("HostBridge") {
        Kind::Other("the console text of lstopo; give its XML: lstopo host.xml")
    } else {
        return None;
    })
}

/// "Mon Nov 23 10:00:00 2026", which stands above the table of nvidia-smi.
fn is_date(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let day = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    matches!(words.as_slice(), [first, .., time, year]
        if words.len() == 5 && day.contains(first) && time.matches(':').count() == 2 && year.len() == 4)
}

/// "[    2.5]", "[Tue Mar 17 ...]", "Mar 17 10:00:00 host kernel: ", "6,339,514090,-;".
fn is_kernel_line(text: &str) -> bool {
    if text.contains(" kernel: ") || text.contains(" kernel: [") {
        return true;
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|r| r.split(']').next()) {
        let inner = inner.trim();
        let seconds = inner.contains('.') && inner.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let dated = ["Mon ", "Tue ", "Wed ", "Thu ", "Fri ", "Sat ", "Sun "]
            .iter()
            .any(|d| inner.starts_with(d));
        return seconds || dated;
    }
    text.split_once(';').is_some_and(|(head, _)| {
        head.split(',').count() >= 3
            && head.starts_with(|c: char| c.is_ascii_digit())
            && head.len() < 60
    }) || text.starts_with("NVRM: ")
        || text.starts_with("AMD-Vi: ")
        || text.starts_with("DMAR: ")
        || is_of_a_device(text)
}

/// "pcieport 0000:00:01.1: AER: ...", "nvidia 0000:06:00.0: PCIe Bus Error: ...": a driver speaks of a device, without the log's time.
fn is_of_a_device(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let driver = words.next().is_some_and(|w| {
        w.len() < 24
            && w.bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    });
    let address = words.next().and_then(|w| w.strip_suffix(':'));
    driver
        && address.is_some_and(|a| {
            a.matches(':').count() == 2 && a.contains('.') && a.parse::<PciAddress>().is_ok()
        })
}

/// Whether a line of no kind of its own goes on with a part.
fn continues(kind: Kind, line: &str) -> bool {
    let indented = line.starts_with([' ', '\t']);
    let text = line.trim();
    match kind {
        Kind::Matrix => topo_table::is_legend(text) || (indented && !text.contains(". ")),
        Kind::Query => indented || text.contains(" : ") || text.starts_with('='),
        Kind::Table => text.starts_with(['|', '+']),
        Kind::Links => indented,
        Kind::Lspci => indented,
        Kind::Tree => false,
        Kind::KernelLog => line.starts_with(' '),
        Kind::CommandLine | Kind::GroupTypes => false,
        Kind::Driver | Kind::Cpu => text
            .split_once(':')
            .is_some_and(|(name, _)| name.split_whitespace().count() <= 4 && name.len() < 48),
        Kind::AppLog => app_log::continues(line),
        Kind::Other(_) => true,
    }
}

/// A part under construction.
struct Open {
    kind: Kind,
    lines: Vec<Line>,
    /// The lines before it: they may say what it is about.
    before: Vec<Line>,
    /// A command asked for this kind, so that lines without a mark belong to it too.
    asked: bool,
}

/// Without colour codes, carriage returns and the quote marks of mail.
fn unquoted(line: &str) -> String {
    let line = topo_table::without_codes(line);
    match line.strip_prefix("> ").or_else(|| line.strip_prefix(">\t")) {
        Some(rest) => rest.to_string(),
        None => line,
    }
}

struct File<'a> {
    name: &'a str,
    domains: &'a mut Domains,
    parts: &'a mut Vec<(String, Part)>,
    ticket: &'a mut Ticket,
    /// Lines of no kind, to be named as one range.
    stray: Vec<Line>,
    sections: usize,
    /// Sentences that told a symptom.
    told: usize,
}

fn file(
    name: &str,
    text: &str,
    domains: &mut Domains,
    parts: &mut Vec<(String, Part)>,
    ticket: &mut Ticket,
) -> Result<(), ImportError> {
    let mut file = File {
        name,
        domains,
        parts,
        ticket,
        stray: Vec::new(),
        sections: 0,
        told: 0,
    };
    let mut open: Option<Open> = None;
    let mut command: Option<(String, Line)> = None;
    let mut answer: Vec<Line> = Vec::new();
    let mut before: Vec<Line> = Vec::new();
    // Nothing but blanks since the prompt.
    let mut fresh = false;
    for (text, number) in text.lines().zip(1_u32..) {
        let line = Line {
            number,
            text: unquoted(text),
        };
        if open.is_none() || prompt(&line.text).is_some() {
            before.push(line.clone());
            if before.len() > 4 {
                before.remove(0);
            }
        }
        if let Some(asked) = prompt(&line.text) {
            file.close(open.take())?;
            file.answer(command.take(), std::mem::take(&mut answer));
            let asked = asked.to_string();
            let mut part = Part::new(name, "command");
            let started = app_log::read_command(&mut part, &asked, &line);
            if started || !part.snapshot.environment.is_empty() {
                part.gave = "settings of a launch".to_string();
                file.keep(
                    "command line of a launch",
                    std::slice::from_ref(&line),
                    part,
                );
            }
            command = Some((asked, line));
            fresh = true;
            continue;
        }
        if line.text.trim().is_empty() {
            if let Some(open) = &mut open {
                open.lines.push(line);
            }
            continue;
        }
        if line.text.trim_start().starts_with("```") {
            file.close(open.take())?;
            continue;
        }
        // What a command printed belongs to it, whatever it looks like.
        let asked = command
            .as_ref()
            .filter(|_| std::mem::take(&mut fresh))
            .and_then(|(c, _)| asked_kind(c));
        let kind = kind_of(&line.text).or(asked);
        match (&mut open, kind) {
            (Some(part), Some(kind)) if part.kind == kind => part.lines.push(line),
            // A heading of one output may look like the start of another kind only at its own margin.
            (Some(part), None)
                if continues(part.kind, &line.text)
                    || (part.asked && part.kind == Kind::KernelLog) =>
            {
                part.lines.push(line);
            }
            (Some(part), Some(_)) if owns(part.kind, &line.text) => part.lines.push(line),
            (_, Some(kind)) => {
                file.close(open.take())?;
                if !answer.is_empty() {
                    file.answer(command.take(), std::mem::take(&mut answer));
                }
                let mut before = std::mem::take(&mut before);
                before.retain(|l| l.number < line.number);
                open = Some(Open {
                    kind,
                    lines: vec![line],
                    before,
                    asked: asked == Some(kind),
                });
            }
            (_, None) => {
                file.close(open.take())?;
                if command.is_some() {
                    answer.push(line);
                } else {
                    file.stray(line);
                }
            }
        }
    }
    file.close(open)?;
    file.answer(command, answer);
    file.end_stray();
    Ok(())
}

/// The kind that a command prints, for outputs that do not show it by themselves.
fn asked_kind(command: &str) -> Option<Kind> {
    if command.starts_with("cat /proc/cmdline") {
        Some(Kind::CommandLine)
    } else if command.starts_with("dmesg") || command.starts_with("journalctl") {
        Some(Kind::KernelLog)
    } else {
        None
    }
}

/// Whether an indented line stays with its part although it looks like another kind.
fn owns(kind: Kind, line: &str) -> bool {
    let indented = line.starts_with([' ', '\t']);
    match kind {
        Kind::Query => indented,
        Kind::Lspci => line.starts_with('\t'),
        _ => false,
    }
}

impl File<'_> {
    fn range(&self, lines: &[Line]) -> String {
        let written = || lines.iter().filter(|l| !l.text.trim().is_empty());
        let (first, last) = (
            written().next().map_or(0, |l| l.number),
            written().next_back().map_or(0, |l| l.number),
        );
        match first == last {
            true => format!("{}:{first}", self.name),
            false => format!("{}:{first}-{last}", self.name),
        }
    }

    fn keep(&mut self, kind: &str, lines: &[Line], mut part: Part) {
        let source = self.range(lines);
        for (number, text, reason) in std::mem::take(&mut part.skipped) {
            self.unread(format!("{}:{number}", self.name), text, reason);
        }
        self.ticket.inputs.push(Input {
            source: source.clone(),
            kind: kind.to_string(),
            gave: part.gave.clone(),
        });
        self.parts.push((source, part));
    }

    fn unread(&mut self, source: String, text: String, reason: String) {
        let count = self.ticket.unread.len();
        if count < MOST_UNREAD {
            self.ticket.unread.push(Unread {
                source,
                text,
                reason,
            });
        } else if count == MOST_UNREAD {
            self.ticket.unread.push(Unread {
                source,
                text: String::new(),
                reason: "from here on, lines that are not understood are not listed".to_string(),
            });
        }
    }

    fn close(&mut self, open: Option<Open>) -> Result<(), ImportError> {
        let Some(Open {
            kind,
            lines,
            before,
            asked: _,
        }) = open
        else {
            return Ok(());
        };
        self.end_stray();
        self.sections += 1;
        if self.sections > MOST_SECTIONS {
            let source = self.range(&lines);
            self.unread(
                source,
                String::new(),
                "more parts in one file than are read".to_string(),
            );
            return Ok(());
        }
        let name = self.name;
        let (words, part) = match kind {
            Kind::Matrix => match self.matrix(&before, &lines) {
                Some((words, part)) => (words, part),
                None => return Ok(()),
            },
            Kind::Query => ("nvidia-smi -q".to_string(), smi_query::read(name, &lines)),
            Kind::Table => (
                "nvidia-smi".to_string(),
                smi_table::read_table(name, &lines),
            ),
            Kind::Links => (
                "nvidia-smi nvlink".to_string(),
                smi_table::read_links(name, &lines),
            ),
            Kind::Lspci => ("lspci".to_string(), lspci::read(name, &lines)),
            Kind::Tree => ("lspci -t".to_string(), lspci_tree::read(name, &lines)),
            Kind::KernelLog => (
                "kernel log".to_string(),
                host_text::read_log(name, &lines, self.domains),
            ),
            Kind::CommandLine => (
                "/proc/cmdline".to_string(),
                host_text::read_command_line(name, &lines, self.domains),
            ),
            Kind::Cpu => ("lscpu".to_string(), host_text::read_cpu(name, &lines)),
            Kind::GroupTypes => (
                "/sys/kernel/iommu_groups/*/type".to_string(),
                host_text::read_group_types(name, &lines, self.domains),
            ),
            Kind::Driver => (
                "/proc/driver/nvidia".to_string(),
                host_text::read_driver(name, &lines),
            ),
            Kind::AppLog => {
                let part = app_log::read(name, &lines);
                let words = part.gave.split(':').next().unwrap_or("log").to_string();
                (words, part)
            }
            Kind::Other(reason) => {
                let source = self.range(&lines);
                let text = lines
                    .first()
                    .map(|l| l.text.trim().chars().take(60).collect())
                    .unwrap_or_default();
                self.unread(source, text, reason.to_string());
                return Ok(());
            }
        };
        self.keep(&words, &lines, part);
        Ok(())
    }

    /// The matrices of a part, by the reader that `map` uses; line numbers stay those of the file.
    fn matrix(&mut self, before: &[Line], lines: &[Line]) -> Option<(String, Part)> {
        // Words before a status matrix say what it is about; they stand in the command or the line above.
        let all: Vec<&Line> = before.iter().chain(lines).collect();
        let text: Vec<&str> = all.iter().map(|l| l.text.as_str()).collect();
        let read = topo_text::read(self.name, &text.join("\n"));
        match read {
            Ok(Some(snapshot)) => {
                let format = match &snapshot.origin {
                    Origin::Recorded { format, .. } => format.clone(),
                    Origin::Live => String::new(),
                };
                let mut part = Part::new(self.name, &format);
                part.gave = format!("{} GPUs", snapshot.gpus.len());
                let place = self.range(lines);
                let told = &mut self.ticket.incomplete;
                for note in &snapshot.topology.notes {
                    if told.len() < MOST_INCOMPLETE {
                        told.push(format!("{place}: {note}"));
                    }
                }
                let header = lines.first()?;
                part.cite(
                    if format.contains("p2p") {
                        "NVML"
                    } else {
                        "topo -m"
                    },
                    "",
                    header,
                );
                part.snapshot = snapshot;
                Some((format, part))
            }
            Ok(None) => {
                let source = self.range(lines);
                let start = lines.first()?.text.trim().chars().take(60).collect();
                self.unread(
                    source,
                    start,
                    "no whole matrix of nvidia-smi topo".to_string(),
                );
                None
            }
            Err(error) => {
                let at = error.line.and_then(|n| all.get(n.checked_sub(1)? as usize));
                let source = at.map_or_else(
                    || self.range(lines),
                    |line| format!("{}:{}", self.name, line.number),
                );
                let start = at.map(|l| l.text.trim().chars().take(60).collect());
                self.unread(source, start.unwrap_or_default(), error.message);
                None
            }
        }
    }

    fn answer(&mut self, command: Option<(String, Line)>, lines: Vec<Line>) {
        let Some((command, at)) = command else {
            return;
        };
        match host_text::read_answer(self.name, &command, &at, &lines) {
            Some(part) => {
                let shown = if lines.is_empty() { vec![at] } else { lines };
                self.keep(&command, &shown, part);
            }
            None => {
                for line in lines {
                    self.stray(line);
                }
            }
        }
    }

    /// A line of no kind: prose may tell a symptom.
    fn stray(&mut self, line: Line) {
        let mut part = Part::new(self.name, "text");
        app_log::read_prose(&mut part, &line);
        if !part.remarks.is_empty() && self.told < MOST_SENTENCES {
            self.told += 1;
            self.end_stray();
            let source = format!("{}:{}", self.name, line.number);
            self.ticket.inputs.push(Input {
                source: source.clone(),
                kind: "a sentence".to_string(),
                gave: "a symptom that is reported".to_string(),
            });
            self.parts.push((source, part));
            return;
        }
        let follows = self
            .stray
            .last()
            .is_none_or(|last| last.number + 3 >= line.number);
        if !follows {
            self.end_stray();
        }
        self.stray.push(line);
    }

    fn end_stray(&mut self) {
        let lines = std::mem::take(&mut self.stray);
        let Some(first) = lines.first() else { return };
        let text = first.text.trim().chars().take(60).collect();
        let source = self.range(&lines);
        self.unread(source, text, "no output that is known".to_string());
    }
}
