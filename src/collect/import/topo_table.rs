//! Finds nvidia-smi's matrices in text as people paste it: colour codes, tabs or blanks, quoted or indented, between other
//! text, without their header, with rows cut in the middle of a cell. What a cell says is kept; what was cut is missing.

use super::error::{ImportError, quoted};
use crate::model::topology::PathType;

/// Most devices of one table; sixteen GPUs with thirty NICs are the largest seen.
const MAX_DEVICES: usize = 128;

/// Most words of a line that are looked at.
const MAX_WORDS: usize = 1024;
/// Most tables of one text.
const MAX_TABLES: usize = 64;

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// The device itself.
    Own,
    /// A PCIe path.
    Path(PathType),
    /// So many NVLinks.
    NvLinks(u32),
    /// A P2P status, in nvidia-smi's letters.
    Status(&'static str),
}

/// What a table is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableKind {
    /// `topo -m`.
    Paths,
    /// `topo -p2p`.
    Statuses,
}

/// A row: the device, its cells by column, and the words after them.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) label: String,
    pub(super) cells: Vec<Cell>,
    /// CPU and NUMA affinity as text; `None` when blank or cut.
    pub(super) cpus: Option<String>,
    pub(super) numa: Option<String>,
    pub(super) cut: bool,
}

/// A matrix.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) kind: TableKind,
    /// Devices by column.
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// Whether the columns come from a header.
    pub(super) header: bool,
    /// The lines before it, nearest last, for the word that says what a status matrix is about.
    pub(super) before: Vec<String>,
}

struct Word<'t> {
    text: &'t str,
    column: u32,
}

struct Raw<'t> {
    number: u32,
    tabs: bool,
    line: &'t str,
    words: Vec<Word<'t>>,
}

/// A header or the start of headerless rows, with the rows that follow.
#[derive(Default)]
struct Pending<'t> {
    columns: Vec<String>,
    extra: Vec<&'static str>,
    rows: Vec<Raw<'t>>,
    line: u32,
    before: Vec<String>,
}

/// All matrices of a text, in order.
pub(super) fn tables(file: &str, text: &str) -> Result<Vec<Table>, ImportError> {
    let clean: Vec<String> = text.lines().map(plain).collect();
    let mut found: Vec<Table> = Vec::new();
    let mut open: Option<Pending<'_>> = None;
    let mut before: Vec<String> = Vec::new();
    for (line, number) in clean.iter().zip(1_u32..) {
        let words = words(line);
        let Some(first) = words.first() else { continue };
        if let Some((columns, extra)) = header(&words) {
            close(file, open.take(), &mut found)?;
            open = Some(Pending {
                columns,
                extra,
                rows: Vec::new(),
                line: number,
                before: std::mem::take(&mut before),
            });
            continue;
        }
        let named = |p: &Pending<'_>| p.columns.iter().any(|c| c == first.text);
        // A garbled cell is an error in a row, and a row shows by its X; other text may begin with GPU0 too.
        let like_cells = words
            .get(1)
            .is_none_or(|w| cells(w.text).is_some() || cut_cell(w.text))
            || words.iter().any(|w| w.text == "X");
        let is_row =
            like_cells && (gpu_number(first.text).is_some() || open.as_ref().is_some_and(named));
        if is_row {
            let again = open.as_ref().is_some_and(|p| {
                p.rows
                    .iter()
                    .any(|r| r.words.first().is_some_and(|w| w.text == first.text))
            });
            if again {
                close(file, open.take(), &mut found)?;
            }
            let pending = open.get_or_insert_with(|| Pending {
                line: number,
                before: std::mem::take(&mut before),
                ..Pending::default()
            });
            pending.rows.push(Raw {
                number,
                tabs: line.contains('\t'),
                line,
                words,
            });
            if pending.rows.len() > MAX_DEVICES {
                return Err(ImportError::at(
                    file,
                    number,
                    1,
                    "more than 128 rows in one table",
                ));
            }
        } else {
            before.push(line.chars().take(200).collect());
            if before.len() > 4 {
                before.remove(0);
            }
        }
    }
    close(file, open, &mut found)?;
    Ok(found)
}

/// Without colour codes, quote marks of mail and chat, and carriage returns.
fn plain(line: &str) -> String {
    let mut out = without_codes(line);
    let quoted = out.trim_start().starts_with(['>', '|']);
    if quoted {
        out = out.trim_start().trim_start_matches(['>', '|']).to_string();
    }
    out
}

/// Whether a line is a header or a row of such a matrix.
pub(super) fn is_line(line: &str) -> bool {
    let line = plain(line);
    let words = words(&line);
    let row = |first: &Word<'_>| {
        gpu_number(first.text).is_some()
            && words
                .get(1)
                .is_some_and(|w| cells(w.text).is_some() || w.text == "X")
    };
    header(&words).is_some() || words.first().is_some_and(row)
}

/// Whether a line stands below a matrix: its legend, or the row of a network adapter.
pub(super) fn is_legend(text: &str) -> bool {
    let mut words = text.split_whitespace();
    let (first, second) = (words.next().unwrap_or_default(), words.next());
    first == "Legend:"
        || text.starts_with("NIC Legend")
        || text.contains(" = ")
        || (first.ends_with(':') && words.next().is_none())
        || second.is_some_and(|w| cells(w).is_some())
}

/// Without colour codes and carriage returns.
pub(super) fn without_codes(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                if rest.next_if_eq(&'[').is_some() {
                    while rest.next_if(|c| c.is_ascii_digit() || *c == ';').is_some() {}
                    rest.next();
                }
            }
            '\r' | '\u{feff}' => {}
            '\u{a0}' => out.push(' '),
            c => out.push(c),
        }
    }
    // Terminals and trackers sometimes drop the escape character and keep the rest.
    for code in ["[4m", "[0m", "[1m"] {
        if out.contains(code) {
            out = out.replace(code, "");
        }
    }
    out
}

fn words(line: &str) -> Vec<Word<'_>> {
    let mut out = Vec::new();
    let mut column = 0_u32;
    let mut start: Option<(usize, u32)> = None;
    for (at, c) in line.char_indices() {
        column = column.saturating_add(1);
        if out.len() == MAX_WORDS {
            break;
        }
        match (c.is_whitespace(), start) {
            (true, Some((from, col))) => {
                out.push(Word {
                    text: &line[from..at],
                    column: col,
                });
                start = None;
            }
            (false, None) => start = Some((at, column)),
            _ => {}
        }
    }
    if let Some((from, col)) = start.filter(|_| out.len() < MAX_WORDS) {
        out.push(Word {
            text: &line[from..],
            column: col,
        });
    }
    out
}

/// The number of `GPU7`.
pub(super) fn gpu_number(label: &str) -> Option<u32> {
    let digits = label.strip_prefix("GPU")?;
    let plain =
        !digits.is_empty() && digits.len() <= 3 && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// Device columns and the names of the columns after them, if the words are a header.
fn header(words: &[Word<'_>]) -> Option<(Vec<String>, Vec<&'static str>)> {
    gpu_number(words.first()?.text)?;
    let device = |w: &&Word<'_>| {
        let t = w.text;
        let nic = t.len() < 32
            && t.starts_with(|c: char| c.is_ascii_alphabetic())
            && t.ends_with(|c: char| c.is_ascii_digit())
            && t.bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
        nic && cells(t).is_none()
    };
    let columns: Vec<String> = words
        .iter()
        .take_while(device)
        .map(|w| w.text.to_string())
        .collect();
    let rest: Vec<&str> = words.iter().skip(columns.len()).map(|w| w.text).collect();
    let rest = rest.join(" ");
    // A cut header ends anywhere; a row continues with a cell.
    let ends = rest.is_empty() || rest.starts_with("CPU") || rest.starts_with("NUMA");
    if !ends || columns.len() > MAX_DEVICES || (columns.len() == 1 && rest.is_empty()) {
        return None;
    }
    let mut extra = Vec::new();
    for name in ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"] {
        if rest.contains(name) {
            extra.push(name);
        }
    }
    Some((columns, extra))
}

/// One word as one cell, or several that lost the blank between them.
fn cells(word: &str) -> Option<Vec<Cell>> {
    let status = match word {
        "OK" => Some("OK"),
        "CNS" => Some("CNS"),
        "GNS" => Some("GNS"),
        "TNS" => Some("TNS"),
        "NS" => Some("NS"),
        "DR" => Some("DR"),
        "U" => Some("U"),
        _ => None,
    };
    if let Some(status) = status {
        return Some(vec![Cell::Status(status)]);
    }
    let mut out = Vec::new();
    let mut rest = word;
    while !rest.is_empty() {
        let (cell, used) = leading_cell(rest)?;
        out.push(cell);
        if out.len() > MAX_DEVICES {
            return None;
        }
        rest = &rest[used..];
    }
    (!out.is_empty()).then_some(out)
}

fn leading_cell(text: &str) -> Option<(Cell, usize)> {
    let paths = [
        ("PIX", PathType::Pix),
        ("PXB", PathType::Pxb),
        ("PHB", PathType::Phb),
        ("NODE", PathType::Node),
        ("SYS", PathType::Sys),
        // Drivers before 375 said SOC for what is now SYS.
        ("SOC", PathType::Sys),
    ];
    for (name, path) in paths {
        if text.starts_with(name) {
            return Some((Cell::Path(path), name.len()));
        }
    }
    if let Some(rest) = text.strip_prefix("NV") {
        let digits = rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
        let count = rest.get(..digits)?.parse().ok()?;
        return Some((Cell::NvLinks(count), 2 + digits));
    }
    text.starts_with('X').then_some((Cell::Own, 1))
}

/// The beginning of a cell that was cut.
fn cut_cell(word: &str) -> bool {
    [
        "PIX", "PXB", "PHB", "NODE", "SYS", "NV", "OK", "CNS", "GNS", "TNS",
    ]
    .iter()
    .any(|c| c.starts_with(word))
}

fn close(
    file: &str,
    pending: Option<Pending<'_>>,
    found: &mut Vec<Table>,
) -> Result<(), ImportError> {
    let Some(pending) = pending else {
        return Ok(());
    };
    let headerless = pending.columns.is_empty();
    if pending.rows.is_empty() {
        return Err(ImportError::at(
            file,
            pending.line,
            1,
            "a header of nvidia-smi topo with no row below it; paste the rows too",
        ));
    }
    let expected = if headerless {
        None
    } else {
        Some(pending.columns.len())
    };
    let mut rows = Vec::new();
    for raw in &pending.rows {
        match row(file, raw, expected, &pending.extra) {
            Ok(row) => rows.push(row),
            // Without a header, a line that merely begins like a row is other text.
            Err(_) if headerless => {}
            Err(error) => return Err(error),
        }
    }
    let columns = if headerless {
        rows.retain(|r| own_column(r) == gpu_number(&r.label).map(|n| n as usize) || r.cut);
        guess_columns(&rows)
    } else {
        pending.columns
    };
    if !rows.iter().any(|r| r.cells.contains(&Cell::Own)) {
        return match headerless {
            true => Ok(()),
            false => Err(ImportError::at(
                file,
                pending.line,
                1,
                "a table of nvidia-smi topo without a single X on its diagonal; paste it whole",
            )),
        };
    }
    for (r, raw) in rows.iter().zip(&pending.rows).filter(|_| !headerless) {
        let place = columns.iter().position(|c| *c == r.label);
        let own = own_column(r);
        if place.is_none() || (own.is_some() && own != place) || (own.is_none() && !r.cut) {
            return Err(ImportError::at(
                file,
                raw.number,
                1,
                format!(
                    "row {} has its X in another column than the header says; cells were lost or shifted: paste the table again",
                    quoted(&r.label)
                ),
            ));
        }
    }
    let statuses = rows
        .iter()
        .any(|r| r.cells.iter().any(|c| matches!(c, Cell::Status(_))));
    let paths = rows.iter().any(|r| {
        r.cells
            .iter()
            .any(|c| matches!(c, Cell::Path(_) | Cell::NvLinks(_)))
    });
    if statuses && paths {
        return Err(ImportError::at(
            file,
            pending.line,
            1,
            "one table with both path types and P2P states; paste topo -m and topo -p2p one below the other",
        ));
    }
    if found.len() == MAX_TABLES {
        return Err(ImportError::at(
            file,
            pending.line,
            1,
            "more than 64 tables in one text; give the first",
        ));
    }
    found.push(Table {
        kind: if statuses {
            TableKind::Statuses
        } else {
            TableKind::Paths
        },
        columns,
        rows,
        header: !headerless,
        before: pending.before,
    });
    Ok(())
}

fn own_column(row: &Row) -> Option<usize> {
    row.cells.iter().position(|c| *c == Cell::Own)
}

/// Without a header: a column is a GPU's if it has a row, or if a GPU reaches it by NVLink; the rest are NICs.
fn guess_columns(rows: &[Row]) -> Vec<String> {
    let width = rows.iter().map(|r| r.cells.len()).max().unwrap_or(0);
    let by_row = rows
        .iter()
        .filter_map(|r| gpu_number(&r.label))
        .map(|n| n as usize + 1)
        .max()
        .unwrap_or(0);
    let by_link = rows
        .iter()
        .filter(|r| gpu_number(&r.label).is_some())
        .filter_map(|r| r.cells.iter().rposition(|c| matches!(c, Cell::NvLinks(_))))
        .map(|p| p + 1)
        .max()
        .unwrap_or(0);
    let gpus = by_row.max(by_link);
    (0..width.max(by_row))
        .map(|n| {
            if n < gpus {
                format!("GPU{n}")
            } else {
                format!("NIC{}", n - gpus)
            }
        })
        .collect()
}

fn row(
    file: &str,
    raw: &Raw<'_>,
    expected: Option<usize>,
    extra: &[&str],
) -> Result<Row, ImportError> {
    let label = raw.words.first().map_or("", |w| w.text);
    let wanted = expected.unwrap_or(MAX_DEVICES);
    let mut got: Vec<Cell> = Vec::new();
    let mut tail: Vec<&Word<'_>> = Vec::new();
    let mut cut = false;
    for (n, word) in raw.words.iter().enumerate().skip(1) {
        let at_end = n + 1 == raw.words.len();
        let parsed = cells(word.text).filter(|_| tail.is_empty());
        match parsed {
            Some(more) if got.len() + more.len() <= wanted => got.extend(more),
            Some(_) => {
                return Err(ImportError::at(
                    file,
                    raw.number,
                    word.column,
                    format!(
                        "row {} has more cells than the header has devices; paste the table again",
                        quoted(label)
                    ),
                ));
            }
            None if got.len() < wanted && at_end && cut_cell(word.text) => cut = true,
            None if got.len() == wanted || expected.is_none() => tail.push(word),
            None => {
                return Err(ImportError::at(
                    file,
                    raw.number,
                    word.column,
                    format!(
                        "{} is no cell of nvidia-smi topo (X, NV#, PIX, PXB, PHB, NODE, SYS, OK, NS, ...)",
                        quoted(word.text)
                    ),
                ));
            }
        }
    }
    if expected.is_some_and(|e| got.len() < e) {
        if !cut {
            // The last cell of a cut row may itself be the beginning of another word (NV1 of NV18).
            got.pop();
        }
        cut = true;
    }
    let (cpus, numa) = if cut {
        (None, None)
    } else if raw.tabs {
        by_tabs(raw.line, got.len(), extra)
    } else {
        by_words(&tail, extra)
    };
    Ok(Row {
        label: label.to_string(),
        cells: got,
        cpus,
        numa,
        cut,
    })
}

/// With tabs an empty field is a field. nvidia-smi prints NUMA affinity N/A one field late, after an empty one.
fn by_tabs(line: &str, cells: usize, extra: &[&str]) -> (Option<String>, Option<String>) {
    let all: Vec<&str> = line.split('\t').map(str::trim).collect();
    let label_at = all.iter().position(|f| !f.is_empty()).unwrap_or(0);
    let fields = all.get(label_at + 1 + cells..).unwrap_or(&[]);
    let keep = |f: Option<&&str>| f.map(|f| (*f).to_string()).filter(|f| !f.is_empty());
    let cpus = keep(fields.first()).filter(|f| cpu_list(f));
    let mut numa = keep(fields.get(1));
    if numa.is_none() && extra.len() == 2 {
        numa = keep(fields.get(2));
    }
    (cpus, numa)
}

/// With blanks only, an empty field shows by its absence.
fn by_words(tail: &[&Word<'_>], extra: &[&str]) -> (Option<String>, Option<String>) {
    let texts: Vec<&str> = tail.iter().map(|w| w.text).collect();
    let blank =
        texts.len() < extra.len() && texts.first().is_some_and(|t| t.parse::<u32>().is_ok());
    let (cpus, rest) = match texts.split_first() {
        Some((first, rest)) if !blank && cpu_list(first) => (Some((*first).to_string()), rest),
        _ => (None, texts.as_slice()),
    };
    (cpus, rest.first().map(|t| (*t).to_string()))
}

fn cpu_list(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'-' | b','))
}
