//! What of a shell text always runs: blocks, lists and pipelines, by counting words that open and close them. Which branch is
//! taken it does not ask.

/// What ends a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// A new line or a semicolon.
    Sequence,
    And,
    Or,
    Pipe,
    Background,
    Opens,
    Closes,
    /// `;;`
    Case,
    /// The end of the text.
    Text,
}

/// A part of a text that may not run, or whose variables end with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scope {
    /// Counted over the text.
    pub(super) id: usize,
    /// Line on which it begins, from 1.
    pub(super) line: usize,
    /// "in an if".
    pub(super) what: &'static str,
}

/// The words of a scope that is a function's.
pub(super) const FUNCTION: &str = "in a function";

/// A scope around commands that were read already.
pub(super) struct Wrap {
    pub(super) from: usize,
    pub(super) depth: usize,
    pub(super) scope: Scope,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    If,
    Loop,
    Case,
    Group,
    Subshell,
}

struct Frame {
    kind: Kind,
    line: usize,
    /// Scopes of what stands in it.
    scope: Vec<Scope>,
    /// Scopes of the command that comes next, by what stands before it in its list.
    list: Vec<Scope>,
    /// An `||` stands in the list.
    or: bool,
    /// The last command of the list cannot fail.
    sure: bool,
    before: Ended,
    /// Where the list, and the member of a pipeline, begins.
    list_from: usize,
    member_from: usize,
    /// Nothing stood in it yet.
    empty: bool,
}

/// The blocks that are open.
pub(super) struct Blocks {
    frames: Vec<Frame>,
    ids: usize,
    /// A name with brackets behind it was read: a function's body is next.
    function: bool,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Blocks {
            frames: vec![Frame::new(Kind::Text, 1, Vec::new(), 0)],
            ids: 0,
            function: false,
        }
    }

    fn scope(&mut self, line: usize, what: &'static str) -> Scope {
        self.ids += 1;
        Scope {
            id: self.ids,
            line,
            what,
        }
    }

    fn open(&mut self, kind: Kind, line: usize, what: Option<&'static str>, at: usize) {
        let mut scope = self.frames.last().map_or(Vec::new(), |f| f.list.clone());
        let what = match std::mem::take(&mut self.function) {
            true => Some(FUNCTION),
            false => what,
        };
        if let Some(what) = what {
            scope.push(self.scope(line, what));
        }
        if let Some(top) = self.frames.last_mut() {
            top.empty = false;
        }
        self.frames.push(Frame::new(kind, line, scope, at));
    }

    fn close(&mut self, kind: Kind) {
        if self.frames.len() > 1 && self.frames.last().is_some_and(|f| f.kind == kind) {
            self.frames.pop();
            if let Some(top) = self.frames.last_mut() {
                top.sure = false;
                top.before = Ended::Closes;
            }
        }
    }

    /// Another branch of the block that is open.
    fn branch(&mut self, kind: Kind, what: &'static str, at: usize) {
        let above = self.frames.len().checked_sub(2);
        let outer = above
            .and_then(|n| self.frames.get(n))
            .map(|f| f.list.clone());
        let Some(top) = self.frames.last().filter(|f| f.kind == kind) else {
            return;
        };
        let line = top.line;
        let mut scope = outer.unwrap_or_default();
        scope.push(self.scope(line, what));
        if let Some(top) = self.frames.last_mut() {
            *top = Frame::new(kind, line, scope, at);
        }
    }

    /// Takes the next command: its words (`None` for one that is not plain text), whether it cannot fail, what ends it, and how
    /// many commands were kept before. Gives its scopes, and those that turn out to stand around earlier ones.
    pub(super) fn command(
        &mut self,
        words: &[Option<&str>],
        line: usize,
        sure: bool,
        ended: Ended,
        at: usize,
    ) -> (Vec<Scope>, Vec<Wrap>) {
        let mut scope = None;
        for (i, word) in words.iter().enumerate() {
            match word {
                Some("if") => self.open(Kind::If, line, None, at),
                Some("while" | "until") => self.open(Kind::Loop, line, None, at),
                Some("for" | "select") => {
                    self.open(Kind::Loop, line, None, at);
                    break;
                }
                Some("case") => {
                    self.open(Kind::Case, line, None, at);
                    break;
                }
                Some("function") => {
                    self.function = true;
                    if words.get(i + 2) == Some(&Some("{")) {
                        self.open(Kind::Group, line, None, at);
                    }
                    break;
                }
                Some("then" | "else" | "elif") => self.branch(Kind::If, "in an if", at),
                Some("do") => self.branch(Kind::Loop, "in a loop", at),
                Some("fi") => self.close(Kind::If),
                Some("done") => self.close(Kind::Loop),
                Some("esac") => self.close(Kind::Case),
                Some("{") => self.open(Kind::Group, line, None, at),
                Some("}") => self.close(Kind::Group),
                Some("!" | "time") => {}
                _ => break,
            }
        }
        if !words.is_empty() {
            if ended != Ended::Opens {
                self.function = self.function && words.first() == Some(&Some("function"));
            }
            if let Some(top) = self.frames.last_mut() {
                top.empty = false;
                top.sure = sure;
                scope = Some(top.list.clone());
            }
        }
        let scope = scope.unwrap_or_default();
        let wraps = self.end(words, line, ended, at);
        (scope, wraps)
    }

    fn end(&mut self, words: &[Option<&str>], line: usize, ended: Ended, at: usize) -> Vec<Wrap> {
        let next = at + usize::from(!words.is_empty());
        let blank = words.is_empty() && ended == Ended::Sequence;
        let Some(top) = self.frames.last() else {
            return Vec::new();
        };
        let (depth, kind, or, sure) = (top.scope.len(), top.kind, top.or, top.sure);
        let (list_from, member_from) = (top.list_from, top.member_from);
        let piped = top.before == Ended::Pipe;
        let mut list = top.list.clone();
        let base = top.scope.clone();
        let mut wraps = Vec::new();
        match ended {
            Ended::Opens => {
                self.open(
                    Kind::Subshell,
                    line,
                    Some("in brackets, a shell of its own"),
                    next,
                );
                return wraps;
            }
            Ended::Closes if kind == Kind::Case => {
                self.branch(Kind::Case, "in a case", next);
                return wraps;
            }
            Ended::Closes => {
                let empty = top.empty && kind == Kind::Subshell && words.is_empty();
                self.close(Kind::Subshell);
                self.function = empty;
                // Patterns of a case may stand in brackets.
                self.branch(Kind::Case, "in a case", next);
                return wraps;
            }
            Ended::Case => {
                self.branch(Kind::Case, "in a case", next);
                return wraps;
            }
            Ended::Sequence | Ended::Text => {
                // A line may end behind && and |.
                if blank && self.frames.last().is_some_and(|f| f.continues()) {
                    return wraps;
                }
                list = base;
            }
            Ended::And if sure && !or && !piped => {}
            Ended::And | Ended::Or => {
                if or || ended == Ended::Or {
                    list = base;
                }
                let what = "behind && or ||";
                list.push(self.scope(line, what));
            }
            Ended::Pipe => {
                let scope = self.scope(line, "in a pipeline, a shell of its own");
                wraps.push(Wrap {
                    from: member_from,
                    depth,
                    scope,
                });
                list = base;
                list.push(self.scope(line, "in a pipeline, a shell of its own"));
            }
            Ended::Background => {
                let scope = self.scope(line, "in the background (&), a shell of its own");
                wraps.push(Wrap {
                    from: list_from,
                    depth,
                    scope,
                });
                list = base;
            }
        }
        if let Some(top) = self.frames.last_mut() {
            top.list = list;
            top.before = ended;
            top.member_from = next;
            top.or = match ended {
                Ended::Or => true,
                Ended::And | Ended::Pipe => top.or,
                _ => false,
            };
            if !top.continues() {
                top.list_from = next;
            }
        }
        wraps
    }
}

impl Frame {
    fn new(kind: Kind, line: usize, scope: Vec<Scope>, at: usize) -> Self {
        Frame {
            kind,
            line,
            list: scope.clone(),
            scope,
            or: false,
            sure: false,
            before: Ended::Sequence,
            list_from: at,
            member_from: at,
            empty: true,
        }
    }

    /// The list goes on behind what ended the last command.
    fn continues(&self) -> bool {
        matches!(self.before, Ended::And | Ended::Or | Ended::Pipe)
    }
}
