//! nvbandwidth's JSON (`nvbandwidth -j`), versions 0.4 to 0.8: test cases with matrices whose cells are numbers in strings,
//! or "N/A". Repeats what the file says; what the cells mean is asked elsewhere.

use crate::model::{
    pci::PciAddress,
    traffic::{OtherTable, OtherTool},
};
use serde::Deserialize;

/// Why a file cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum NvbandwidthError {
    /// Not JSON, or JSON of another shape.
    #[error("not nvbandwidth's JSON: {0} (expected the output of 'nvbandwidth -j')")]
    Shape(#[from] serde_json::Error),
    /// Text around the JSON, as the plain output has.
    #[error(
        "not nvbandwidth's JSON: it begins with '{0}' (expected the output of 'nvbandwidth -j')"
    )]
    Text(String),
    /// A cell that is neither a number nor N/A.
    #[error(
        "test case '{testcase}', row {row}, column {column}: '{text}' is neither a number nor N/A"
    )]
    Cell {
        /// Test case.
        testcase: String,
        /// Row, from 0.
        row: usize,
        /// Column, from 0.
        column: usize,
        /// What stands there.
        text: String,
    },
    /// No test case at all.
    #[error("holds no test case{}", .0.as_ref().map_or(String::new(), |error| format!("; nvbandwidth says: {error}")))]
    Empty(Option<String>),
}

#[derive(Deserialize)]
struct File {
    nvbandwidth: Root,
}

#[derive(Deserialize)]
struct Root {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default, rename = "GPU Device list")]
    devices: Option<Vec<String>>,
    #[serde(default)]
    testcases: Vec<Testcase>,
}

#[derive(Deserialize)]
struct Testcase {
    name: String,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    bandwidth_description: Option<String>,
    #[serde(default)]
    bandwidth_matrix: Option<Vec<Vec<Cell>>>,
}

/// Strings up to 0.8; a reader must not fail on a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Cell {
    Text(String),
    Number(f64),
    Nothing(()),
}

/// Longest text of the file that an error repeats.
const SHOWN: usize = 40;

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Reads what `nvbandwidth -j` printed.
///
/// # Errors
/// Other text or JSON, a cell that is no number, a file without test cases.
pub fn read_nvbandwidth(text: &str) -> Result<OtherTool, NvbandwidthError> {
    let plain = text.trim_start_matches('\u{feff}').trim();
    if !plain.starts_with('{') {
        let first = plain.lines().next().unwrap_or_default();
        return Err(NvbandwidthError::Text(shown(first)));
    }
    let root = serde_json::from_str::<File>(plain)?.nvbandwidth;
    if root.testcases.is_empty() {
        return Err(NvbandwidthError::Empty(root.error.as_deref().map(shown)));
    }
    let version = root
        .version
        .as_deref()
        .map_or("of unknown version", str::trim);
    let devices = root.devices.unwrap_or_default();
    let tables = root.testcases.into_iter().map(table);
    Ok(OtherTool {
        tool: format!("nvbandwidth {}", shown(version)),
        devices: devices.iter().map(|line| address(line)).collect(),
        tables: tables.collect::<Result<_, _>>()?,
    })
}

fn table(case: Testcase) -> Result<OtherTable, NvbandwidthError> {
    let mut rows: Vec<Vec<Option<f64>>> = Vec::new();
    for (row, cells) in case.bandwidth_matrix.iter().flatten().enumerate() {
        let read = |(column, cell): (usize, &Cell)| match cell {
            Cell::Nothing(()) => Ok(None),
            Cell::Number(value) => Ok(Some(*value)),
            Cell::Text(text) if text.trim().eq_ignore_ascii_case("n/a") => Ok(None),
            Cell::Text(text) => match text.trim().parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(Some(value)),
                _ => Err(NvbandwidthError::Cell {
                    testcase: shown(&case.name),
                    row,
                    column,
                    text: shown(text),
                }),
            },
        };
        let cells = cells.iter().enumerate().map(read);
        rows.push(cells.collect::<Result<_, _>>()?);
    }
    // Tests of both directions put three tables into one, the total last.
    let total = case
        .bandwidth_description
        .as_deref()
        .is_some_and(|text| text.contains("Total"));
    let width = rows.first().map_or(0, Vec::len);
    if total && width > 1 && rows.len() == 3 * width {
        rows.drain(..2 * width);
    }
    let missing = match (&case.error, case.status.as_deref(), rows.is_empty()) {
        (Some(error), _, _) => Some(shown(error)),
        (None, Some(status), true) => Some(shown(status)),
        (None, None, true) => Some("no cells".to_string()),
        (None, _, false) => None,
    };
    Ok(OtherTable {
        name: case.name,
        rows,
        missing,
    })
}

/// The PCI address in "0: NVIDIA H200 (00000000:18:00): (host)"; the function is not printed.
fn address(line: &str) -> Option<PciAddress> {
    line.split(|c: char| !(c.is_ascii_hexdigit() || matches!(c, ':' | '.')))
        .filter(|word| word.matches(':').count() == 2)
        .find_map(|word| word.trim_matches(':').parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"nvbandwidth": {
        "CUDA Runtime Version": 12080, "Driver Version": "580.95.05", "git_version": "v0.8", "version": "v0.8",
        "GPU Device list": ["0: NVIDIA H200 (00000000:18:00): (h)", "1: NVIDIA H200 (00000000:3a:00): (h)"],
        "testcases": [
          {"name": "device_to_device_memcpy_write_ce", "status": "Passed", "sum": 1.0,
           "bandwidth_description": "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
           "bandwidth_matrix": [["N/A", "380.1"], ["379.2", "N/A"]]},
          {"name": "device_to_device_bidirectional_memcpy_write_ce", "status": "Passed",
           "bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
           "bandwidth_matrix": [["N/A","1"],["2","N/A"],["N/A","3"],["4","N/A"],["N/A","700"],["701","N/A"]]},
          {"name": "host_to_device_memcpy_ce", "status": "Waived"}
        ]}}"#;

    #[test]
    fn matrices_devices_and_what_is_missing_are_read() {
        let file = read_nvbandwidth(GOOD).unwrap();
        assert_eq!(file.tool, "nvbandwidth v0.8");
        assert_eq!(file.devices[1], "0000:3a:00.0".parse().ok());
        assert_eq!(
            file.tables[0].rows,
            [vec![None, Some(380.1)], vec![Some(379.2), None]]
        );
        assert_eq!(
            file.tables[1].rows,
            [vec![None, Some(700.0)], vec![Some(701.0), None]]
        );
        assert_eq!(file.tables[2].missing.as_deref(), Some("Waived"));
    }

    #[test]
    fn other_files_are_refused_in_one_sentence() {
        for (text, says) in [
            ("", "begins with ''"),
            (
                "nvbandwidth Version: v0.8\nBuilt from",
                "begins with 'nvbandwidth Version",
            ),
            ("{\"schema_version\": 1}", "missing field `nvbandwidth`"),
            ("{\"nvbandwidth\": {", "EOF"),
            ("{\"nvbandwidth\": {\"error\": \"no CUDA\"}}", "no CUDA"),
        ] {
            let error = read_nvbandwidth(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let cell = GOOD.replace("379.2", "fast");
        let error = read_nvbandwidth(&cell).unwrap_err().to_string();
        assert!(
            error.contains("write_ce', row 1, column 0: 'fast'"),
            "{error}"
        );
    }
}
