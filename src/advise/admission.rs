//! What a workspace admits, in rows and whole requests, and which row counts are worth tuning for (facts: engines.md 7).

use super::sizing::grouped;

/// What fits into a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// Elements of the workspace.
    pub elements: u64,
    /// Rows that they hold.
    pub rows: u64,
    /// Rows of one request.
    pub rows_per_request: u64,
    /// Whole requests that they hold.
    pub requests: u64,
}

/// What a workspace of `elements` admits of rows of `hidden` elements. Sizes of 0 hold nothing.
pub fn admitted(elements: u64, hidden: u64, rows_per_request: u64) -> Admitted {
    let rows = elements.checked_div(hidden).unwrap_or(0);
    Admitted {
        elements,
        rows,
        rows_per_request,
        requests: rows.checked_div(rows_per_request).unwrap_or(0),
    }
}

impl Admitted {
    /// "786,432 elements admit 192 rows, which are 32 requests of 6 rows; ..."
    pub fn sentence(self) -> String {
        let next = self.requests.saturating_add(1);
        format!(
            "{} admit {}: {} of {}; with request {} the step has {} and goes to NCCL, without a message",
            counted(self.elements, "element"),
            counted(self.rows, "row"),
            counted(self.requests, "request"),
            counted(self.rows_per_request, "row"),
            grouped(next),
            counted(next.saturating_mul(self.rows_per_request), "row"),
        )
    }
}

/// "1 request", "32 requests".
pub(super) fn counted(number: u64, what: &str) -> String {
    format!(
        "{} {what}{}",
        grouped(number),
        if number == 1 { "" } else { "s" }
    )
}

/// Row counts to tune for: powers of two up to `rows`, and `rows`. No bucket may lie above what the workspace admits.
pub(crate) fn tune_rows(rows: u64) -> Vec<u64> {
    let mut all: Vec<u64> = std::iter::successors(Some(1u64), |n| n.checked_mul(2))
        .take_while(|n| *n < rows)
        .collect();
    if rows > 0 {
        all.push(rows);
    }
    all
}
