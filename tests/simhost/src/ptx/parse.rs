//! The text of a module: directives, variables, entries, statements. Knows PTX's grammar; what an instruction means is
//! the decoder's business.

use std::fmt;
use std::sync::Arc;

use super::code::Code;
use super::decode::decode;
use super::lex::{Tok, Token, tokens};
use super::spaces::ModuleData;
use super::types::{Space, Ty};

/// Text that this interpreter does not execute, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub message: String,
}

impl ParseError {
    pub(super) fn new(line: u32, message: impl Into<String>) -> ParseError {
        ParseError {
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

type Res<T> = Result<T, ParseError>;

/// A parameter's place in the launch's parameter bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Bytes from the start of the parameters.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// A kernel, decoded.
pub struct Entry {
    /// Name as `cuModuleGetFunction` gets it.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Bytes of all parameters with their padding.
    pub param_bytes: usize,
    /// From `.maxntid` or `.reqntid`: most threads of a block.
    pub max_threads: Option<u32>,
    /// Static shared memory, bytes.
    pub shared_bytes: usize,
    /// Local memory of one thread, bytes.
    pub local_bytes: usize,
    pub(super) code: Code,
    pub(super) data: Arc<ModuleData>,
}

/// A parsed module with storage for its variables.
pub struct Module {
    entries: Vec<Entry>,
    globals: Vec<Var>,
    data: Arc<ModuleData>,
}

impl Module {
    /// Parses and decodes the whole text. Every instruction of every entry is checked, so a module that parses executes.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let toks = tokens(text)?;
        Parser {
            toks: &toks,
            pos: 0,
            last: toks.last().map_or(1, |t| t.line),
        }
        .module()
    }

    /// The entry of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// All entries, in order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// Host address and bytes of a `.global` or `.const` variable; valid while the module or one of its entries lives.
    pub fn variable(&self, name: &str) -> Option<(*mut u8, usize)> {
        let v = self.globals.iter().find(|v| v.name == name)?;
        Some((self.data.host(v.at), v.size))
    }
}

/// A variable, module-wide or of one entry. `at` is its offset in its space's storage.
#[derive(Clone, Debug)]
pub(super) struct Var {
    pub(super) name: String,
    pub(super) space: Space,
    pub(super) at: usize,
    pub(super) size: usize,
    pub(super) align: usize,
    /// `.extern .shared name[]`: starts where static shared memory ends.
    pub(super) dynamic: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Arg {
    Name(String),
    Int(u64),
    F32(u32),
    F64(u64),
    Vector(Vec<Arg>),
    /// `[base+off]`; no base is an absolute address.
    Address(Option<String>, i64),
    Not(Box<Arg>),
    Pair(Box<Arg>, Box<Arg>),
}

#[derive(Clone, Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    /// Predicate name and whether it is negated.
    pub(super) guard: Option<(String, bool)>,
    pub(super) op: String,
    pub(super) args: Vec<Arg>,
    pub(super) scope: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Item {
    Label(String, usize),
    Stmt(Stmt),
    Targets(String, Vec<String>, usize),
}

/// `.reg .b32 %r<5>` or `.reg .b32 x`.
#[derive(Clone, Debug)]
pub(super) struct RegDecl {
    pub(super) ty: Ty,
    pub(super) name: String,
    pub(super) count: Option<u32>,
    pub(super) scope: usize,
}

/// An entry's body before decoding. `scopes[i]` is the scope around scope `i`; scope 0 is the body.
#[derive(Default)]
pub(super) struct Body {
    pub(super) name: String,
    pub(super) params: Vec<(String, Param)>,
    pub(super) regs: Vec<RegDecl>,
    pub(super) vars: Vec<Var>,
    pub(super) items: Vec<Item>,
    pub(super) scopes: Vec<usize>,
}

struct Parser<'a> {
    toks: &'a [Token],
    pos: usize,
    last: u32,
}

pub(super) fn align_up(v: usize, to: usize) -> usize {
    v.div_ceil(to) * to
}

impl Parser<'_> {
    fn line(&self) -> u32 {
        self.toks.get(self.pos).map_or(self.last, |t| t.line)
    }
    fn fail<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError::new(self.line(), message))
    }
    fn peek(&self) -> Option<&Tok> {
        self.toks.get(self.pos).map(|t| &t.tok)
    }
    fn is(&self, c: char) -> bool {
        self.peek() == Some(&Tok::Punct(c))
    }
    fn accept(&mut self, c: char) -> bool {
        let yes = self.is(c);
        self.pos += usize::from(yes);
        yes
    }
    fn expect(&mut self, c: char) -> Res<()> {
        if self.accept(c) {
            Ok(())
        } else {
            self.fail(format!("expected `{c}`{}", self.found()))
        }
    }
    fn found(&self) -> String {
        match self.peek() {
            Some(Tok::Word(w)) => format!(", found `{w}`"),
            Some(Tok::Punct(c)) => format!(", found `{c}`"),
            Some(t) => format!(", found {t:?}"),
            None => ", found the end of the text".to_owned(),
        }
    }
    fn word(&mut self) -> Res<String> {
        match self.peek() {
            Some(Tok::Word(w)) => {
                let w = w.clone();
                self.pos += 1;
                Ok(w)
            }
            _ => self.fail(format!("expected a name{}", self.found())),
        }
    }
    fn accept_word(&mut self, w: &str) -> bool {
        let yes = matches!(self.peek(), Some(Tok::Word(x)) if x == w);
        self.pos += usize::from(yes);
        yes
    }
    fn int(&mut self) -> Res<u64> {
        let negative = self.accept('-');
        match self.peek() {
            Some(&Tok::Int(v)) => {
                self.pos += 1;
                Ok(if negative { v.wrapping_neg() } else { v })
            }
            _ => self.fail(format!("expected an integer{}", self.found())),
        }
    }
    fn size(&mut self) -> Res<usize> {
        let v = self.int()?;
        if v > 1 << 30 {
            self.fail(format!("size {v} is out of range"))
        } else {
            Ok(v as usize)
        }
    }

    fn module(mut self) -> Res<Module> {
        let mut vars: Vec<Var> = Vec::new();
        let mut image: Vec<u8> = Vec::new();
        let mut bodies = Vec::new();
        while self.peek().is_some() {
            let w = self.word()?;
            match w.as_str() {
                ".version" => {
                    self.pos += 1;
                }
                ".target" => {
                    self.word()?;
                    while self.accept(',') {
                        self.word()?;
                    }
                }
                ".address_size" => {
                    if self.int()? != 64 {
                        return self.fail("only .address_size 64 is supported");
                    }
                }
                ".visible" | ".weak" => {}
                ".file" | ".pragma" => self.skip_line(),
                ".extern" => {
                    let space = self.word()?;
                    if space != ".shared" {
                        return self.fail(format!("`.extern {space}` is not supported"));
                    }
                    let v = self.variable(Space::Shared, true, &mut Vec::new())?;
                    vars.push(v);
                }
                ".global" => vars.push(self.variable(Space::Global, false, &mut image)?),
                ".const" => vars.push(self.variable(Space::Const, false, &mut image)?),
                ".shared" => vars.push(self.variable(Space::Shared, false, &mut Vec::new())?),
                ".entry" => bodies.push(self.entry()?),
                ".func" => {
                    return self.fail("device functions (.func) are not supported: inline them");
                }
                other => return self.fail(format!("`{other}` is not supported")),
            }
        }
        let data = Arc::new(ModuleData::new(&image));
        let mut entries: Vec<Entry> = Vec::new();
        for (body, max_threads) in bodies {
            if entries.iter().any(|e| e.name == body.name) {
                return self.fail(format!("entry `{}` is defined twice", body.name));
            }
            let code = decode(&body, &vars)?;
            let params: Vec<Param> = body.params.iter().map(|(_, p)| *p).collect();
            entries.push(Entry {
                param_bytes: params.last().map_or(0, |p| p.offset + p.size),
                params,
                max_threads,
                shared_bytes: code.shared_bytes,
                local_bytes: code.local_bytes,
                name: body.name,
                code,
                data: Arc::clone(&data),
            });
        }
        vars.retain(|v| matches!(v.space, Space::Global | Space::Const));
        Ok(Module {
            entries,
            globals: vars,
            data,
        })
    }

    fn skip_line(&mut self) {
        let line = self.toks[self.pos - 1].line;
        while self.toks.get(self.pos).is_some_and(|t| t.line == line) {
            self.pos += 1;
        }
    }

    /// `[.align N] .type name[N] [= init];` into `image`, whose length becomes the variable's end.
    fn variable(&mut self, space: Space, external: bool, image: &mut Vec<u8>) -> Res<Var> {
        let mut align = None;
        if self.accept_word(".align") {
            align = Some(self.size()?);
        }
        let w = self.word()?;
        let Some(ty) = w
            .strip_prefix('.')
            .and_then(Ty::parse)
            .filter(|t| t.size() > 0)
        else {
            return self.fail(format!("`{w}` is not a type of a variable"));
        };
        let name = self.word()?;
        let align = align.unwrap_or(ty.size());
        if !align.is_power_of_two() || align > 256 {
            return self.fail(format!("alignment {align} is not supported"));
        }
        let (mut count, mut dynamic) = (1usize, false);
        while self.accept('[') {
            if self.accept(']') {
                dynamic = true;
                continue;
            }
            let n = self.size()?;
            count = count.saturating_mul(n);
            self.expect(']')?;
        }
        if dynamic != external {
            return self.fail("an unsized array must be .extern .shared, and the other way round");
        }
        let size = if dynamic {
            0
        } else {
            count.saturating_mul(ty.size())
        };
        if size > 1 << 28 {
            return self.fail(format!("variable `{name}` of {size} bytes is too large"));
        }
        let at = align_up(image.len(), align);
        image.resize(at + size, 0);
        if self.accept('=') {
            if !matches!(space, Space::Global | Space::Const) {
                return self.fail("only .global and .const variables have initialisers");
            }
            let braces = self.accept('{');
            let mut next = at;
            loop {
                if braces && self.is('}') {
                    break;
                }
                let bits = match self.peek() {
                    Some(&Tok::F32(b)) if ty.size() == 4 => {
                        self.pos += 1;
                        u64::from(b)
                    }
                    Some(&Tok::F64(b)) if ty.size() == 8 => {
                        self.pos += 1;
                        b
                    }
                    _ => self.int()?,
                };
                if next + ty.size() > at + size {
                    return self.fail(format!("`{name}` has more initial values than elements"));
                }
                image[next..next + ty.size()].copy_from_slice(&bits.to_le_bytes()[..ty.size()]);
                next += ty.size();
                if !self.accept(',') {
                    break;
                }
            }
            if braces {
                self.expect('}')?;
            }
        }
        self.expect(';')?;
        Ok(Var {
            name,
            space,
            at,
            size,
            align,
            dynamic,
        })
    }

    fn entry(&mut self) -> Res<(Body, Option<u32>)> {
        let mut body = Body {
            name: self.word()?,
            scopes: vec![0],
            ..Body::default()
        };
        let mut end = 0;
        if self.accept('(') && !self.accept(')') {
            loop {
                if !self.accept_word(".param") {
                    return self.fail(format!("expected `.param`{}", self.found()));
                }
                let (mut align, mut ty) = (None, None);
                let name = loop {
                    let w = self.word()?;
                    match w.as_str() {
                        ".align" => align = Some(self.size()?),
                        ".ptr" | ".global" | ".const" | ".shared" => {}
                        _ => match w.strip_prefix('.') {
                            Some(t) => ty = Ty::parse(t).filter(|t| t.size() > 0),
                            None => break w,
                        },
                    }
                };
                let Some(ty) = ty else {
                    return self.fail(format!("parameter `{name}` has no type that is supported"));
                };
                let mut size = ty.size();
                if self.accept('[') {
                    size = size.saturating_mul(self.size()?);
                    self.expect(']')?;
                }
                let align = align.unwrap_or(ty.size());
                if !align.is_power_of_two() {
                    return self.fail(format!("alignment {align} is not supported"));
                }
                let offset = align_up(end, align);
                end = offset + size;
                if end > 1 << 15 {
                    return self.fail("parameters are too large");
                }
                body.params.push((name, Param { offset, size }));
                if !self.accept(',') {
                    break;
                }
            }
            self.expect(')')?;
        }
        let mut max_threads = None;
        while !self.is('{') {
            let w = self.word()?;
            match w.as_str() {
                ".maxntid" | ".reqntid" => {
                    let mut n = self.int()?;
                    while self.accept(',') {
                        n = n.saturating_mul(self.int()?);
                    }
                    max_threads = Some(u32::try_from(n).unwrap_or(u32::MAX));
                }
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => {
                    self.int()?;
                }
                ".pragma" => {
                    self.pos += 1;
                    self.expect(';')?;
                }
                other => return self.fail(format!("`{other}` is not supported")),
            }
        }
        self.body(&mut body)?;
        Ok((body, max_threads))
    }

    fn body(&mut self, body: &mut Body) -> Res<()> {
        self.expect('{')?;
        let mut scope = 0;
        let mut open = vec![];
        loop {
            if self.accept('{') {
                open.push(scope);
                body.scopes.push(scope);
                scope = body.scopes.len() - 1;
                continue;
            }
            if self.accept('}') {
                match open.pop() {
                    Some(outer) => scope = outer,
                    None => return Ok(()),
                }
                continue;
            }
            if self.accept(';') {
                continue;
            }
            let line = self.line();
            if self.accept('@') {
                let negated = self.accept('!');
                let name = self.word()?;
                let op = self.word()?;
                self.statement(body, line, Some((name, negated)), op, scope)?;
                continue;
            }
            let w = self.word()?;
            match w.as_str() {
                ".reg" => self.registers(body, scope)?,
                ".local" => {
                    let mut unused = Vec::new();
                    let v = self.variable(Space::Local, false, &mut unused)?;
                    body.vars.push(v);
                }
                ".shared" => {
                    let v = self.variable(Space::Shared, false, &mut Vec::new())?;
                    body.vars.push(v);
                }
                ".loc" => self.skip_line(),
                ".pragma" => {
                    self.pos += 1;
                    self.expect(';')?;
                }
                _ if w.starts_with('.') => {
                    self.pos -= 1;
                    return self.fail(format!("`{w}` is not supported"));
                }
                _ if self.accept(':') => {
                    if self.accept_word(".branchtargets") {
                        let mut list = vec![self.word()?];
                        while self.accept(',') {
                            list.push(self.word()?);
                        }
                        self.expect(';')?;
                        body.items.push(Item::Targets(w, list, scope));
                    } else {
                        body.items.push(Item::Label(w, scope));
                    }
                }
                _ => self.statement(body, line, None, w, scope)?,
            }
        }
    }

    fn registers(&mut self, body: &mut Body, scope: usize) -> Res<()> {
        let w = self.word()?;
        let Some(ty) = w
            .strip_prefix('.')
            .and_then(Ty::parse)
            .filter(|t| t.size() != 1)
        else {
            return self.fail(format!("registers of type `{w}` are not supported"));
        };
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.accept('<') {
                count = Some(self.int()?.min(1 << 20) as u32);
                self.expect('>')?;
            }
            body.regs.push(RegDecl {
                ty,
                name,
                count,
                scope,
            });
            if !self.accept(',') {
                break;
            }
        }
        self.expect(';')
    }

    fn statement(
        &mut self,
        body: &mut Body,
        line: u32,
        guard: Option<(String, bool)>,
        op: String,
        scope: usize,
    ) -> Res<()> {
        let mut args = Vec::new();
        if !self.is(';') {
            loop {
                let a = self.arg()?;
                args.push(if self.accept('|') {
                    Arg::Pair(Box::new(a), Box::new(self.arg()?))
                } else {
                    a
                });
                if !self.accept(',') {
                    break;
                }
            }
        }
        self.expect(';')?;
        body.items.push(Item::Stmt(Stmt {
            line,
            guard,
            op,
            args,
            scope,
        }));
        Ok(())
    }

    fn arg(&mut self) -> Res<Arg> {
        if self.accept('{') {
            let mut list = vec![self.arg()?];
            while self.accept(',') {
                list.push(self.arg()?);
            }
            self.expect('}')?;
            return Ok(Arg::Vector(list));
        }
        if self.accept('!') {
            return Ok(Arg::Not(Box::new(self.arg()?)));
        }
        if self.accept('[') {
            let base = match self.peek() {
                Some(Tok::Word(_)) => Some(self.word()?),
                _ => None,
            };
            let mut off = 0;
            if base.is_none() || self.accept('+') || self.is('-') {
                off = self.int()? as i64;
            }
            self.expect(']')?;
            return Ok(Arg::Address(base, off));
        }
        let a = match self.peek() {
            Some(Tok::Word(w)) => Arg::Name(w.clone()),
            Some(&Tok::F32(b)) => Arg::F32(b),
            Some(&Tok::F64(b)) => Arg::F64(b),
            _ => return self.int().map(Arg::Int),
        };
        self.pos += 1;
        Ok(a)
    }
}
