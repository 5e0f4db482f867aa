//! Reads a module of PTX.

use std::collections::HashMap;

use crate::arithmetic::Type;
use crate::decode::{Argument, decode};
use crate::module::{Address, Instruction, Kernel, Module, Operand, Operation, Space, Special};

/// A word or a sign of the text.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: u32,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    Register(u32),
    Place(Space, u64),
}

/// A function: where it begins, where its results and its parameters lie in local memory.
struct Function {
    start: usize,
    results: Vec<Variable>,
    parameters: Vec<Variable>,
}

/// Bytes in local memory.
#[derive(Debug, Clone, Copy)]
struct Variable {
    at: usize,
    bytes: usize,
}

/// A branch to a label that may follow.
struct Branch<'a> {
    instruction: usize,
    label: &'a str,
    line: u32,
}

/// A call of a function that may follow: of the instructions from this one on, one for each argument copies it there, one
/// calls, and one for each result copies it back. Where those lie in local memory is known.
struct Call<'a> {
    instruction: usize,
    name: &'a str,
    line: u32,
    arguments: Vec<usize>,
    results: Vec<usize>,
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    module: Module,
    /// Names and what they stand for, of the module, of a function, of a block in it.
    scopes: Vec<HashMap<&'a str, Meaning>>,
    /// Registers of a kind: %r0 and so on.
    ranges: Vec<HashMap<&'a str, u32>>,
    functions: HashMap<&'a str, Function>,
    calls: Vec<Call<'a>>,
    /// Where the next variable in shared memory lies; those of no length begin behind them all.
    shared_at: usize,
}

/// Reads a module, or says what is wrong with it.
pub fn parse(text: &str) -> Result<Module, String> {
    // `shared::cta` as one word.
    let words = text.replace("::", ".");
    let tokens = tokens(&words);
    let shared_bytes = shared_bytes(&tokens)?;
    let mut parser = Parser {
        tokens,
        at: 0,
        module: Module {
            text: text.to_owned(),
            target: 0,
            kernels: Vec::new(),
            code: Vec::new(),
            registers: 0,
            constants: HashMap::new(),
            local_bytes: 0,
            shared_bytes,
            variables: Vec::new(),
        },
        scopes: vec![HashMap::new()],
        ranges: vec![HashMap::new()],
        functions: HashMap::new(),
        calls: Vec::new(),
        shared_at: 0,
    };
    parser.module().map_err(|reason| {
        let line = parser.tokens.get(parser.at.saturating_sub(1)).map_or(0, |token| token.line);
        format!("line {line} of the PTX: {reason}")
    })?;
    Ok(parser.module)
}

/// Words of letters, digits and what PTX has in names and numbers; signs of one character; no comments.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split("//").next().unwrap_or("");
        let is_word = |character: char| character.is_ascii_alphanumeric() || "_.$%\"".contains(character);
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = match first {
                _ if is_word(first) => rest.find(|character| !is_word(character)).unwrap_or(rest.len()),
                _ => first.len_utf8(),
            };
            let (word, after) = rest.split_at(length);
            tokens.push(Token { text: word, line });
            rest = after.trim_start();
        }
    }
    tokens
}

/// A variable as it is declared behind its memory: `.align 8 .b8 name[40]`.
struct Declaration<'a> {
    name: &'a str,
    of: Type,
    alignment: usize,
    /// None for `name[]`.
    bytes: Option<usize>,
}

impl<'a> Declaration<'a> {
    /// Reads one, and how many tokens it has.
    fn read(tokens: &[Token<'a>]) -> Result<(Self, usize), String> {
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
        let (alignment, skipped) = match text(0) {
            ".align" => (text(1).parse().map_err(|_| "an alignment is no number")?, 2),
            _ => (0, 0),
        };
        let of = Type::named(text(skipped).trim_start_matches('.')).ok_or("a variable has no type")?;
        let name = skipped + 1;
        let (bytes, length) = match text(name + 1) {
            "[" if text(name + 2) == "]" => (None, name + 3),
            "[" => {
                let count = text(name + 2).parse::<usize>().map_err(|_| "a length is no number")?;
                (Some(count * of.bytes()), name + 4)
            }
            _ => (Some(of.bytes()), name + 1),
        };
        Ok((Self { name: text(name), of, alignment: alignment.max(of.bytes()), bytes }, length))
    }

    fn bytes(&self) -> Result<usize, String> {
        self.bytes.ok_or(format!("{} has no length", self.name))
    }
}

/// Bytes of all variables in shared memory that have a length.
fn shared_bytes(tokens: &[Token<'_>]) -> Result<usize, String> {
    let mut bytes = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        if token.text == ".shared" {
            let (variable, _) = Declaration::read(&tokens[at + 1..])?;
            bytes = bytes.next_multiple_of(variable.alignment) + variable.bytes.unwrap_or(0);
        }
    }
    Ok(bytes.next_multiple_of(16))
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |token| token.text)
    }

    fn next(&mut self) -> &'a str {
        let text = self.peek();
        self.at += 1;
        text
    }

    fn takes(&mut self, text: &str) -> bool {
        let is = self.peek() == text;
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.next() {
            found if found == text => Ok(()),
            found => Err(format!("{text} expected, and {found} found")),
        }
    }

    fn number(&mut self) -> Result<usize, String> {
        let text = self.next();
        text.parse().map_err(|_| format!("{text} is no number"))
    }

    fn declaration(&mut self) -> Result<Declaration<'a>, String> {
        let (declaration, length) = Declaration::read(&self.tokens[self.at..])?;
        self.at += length;
        Ok(declaration)
    }

    /// What stands between two signs, with commas between.
    fn list<T>(
        &mut self,
        open: &str,
        close: &str,
        item: impl Fn(&mut Self) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        self.expect(open)?;
        let mut all = Vec::new();
        while !self.takes(close) {
            self.takes(",");
            all.push(item(self)?);
        }
        Ok(all)
    }

    fn skip_to(&mut self, end: &str) {
        while !["", end].contains(&self.next()) {}
    }

    fn module(&mut self) -> Result<(), String> {
        loop {
            match self.next() {
                "" => break,
                ".version" | ".address_size" => self.at += 1,
                ".target" => {
                    let target = self.next();
                    let digits = target.trim_start_matches("sm_");
                    self.module.target = digits.parse().map_err(|_| format!("{target} is not known here"))?;
                }
                ".visible" | ".extern" | ".weak" => {}
                ".global" => self.variable()?,
                ".shared" => self.shared()?,
                ".entry" => self.kernel()?,
                ".func" => self.function()?,
                other => return Err(format!("{other} is not known here")),
            }
        }
        for Call { instruction, name, line, arguments, results } in std::mem::take(&mut self.calls) {
            let function = self.functions.get(name).ok_or(format!("line {line}: there is no {name}"))?;
            let there = arguments.iter().zip(&function.parameters);
            let there = there.map(|(&from, to)| Operation::Copy { from, to: to.at, bytes: to.bytes });
            let back = results.iter().zip(&function.results);
            let back = back.map(|(&to, from)| Operation::Copy { from: from.at, to, bytes: from.bytes });
            let call = std::iter::once(Operation::Call { start: function.start });
            for (at, operation) in (instruction..).zip(there.chain(call).chain(back)) {
                self.module.code[at].operation = operation;
            }
        }
        Ok(())
    }

    fn means(&mut self, name: &'a str, meaning: Meaning) {
        self.scopes.last_mut().expect("there is always one").insert(name, meaning);
    }

    fn meaning(&self, name: &str) -> Option<Meaning> {
        if let Some(&meaning) = self.scopes.iter().rev().find_map(|scope| scope.get(name)) {
            return Some(meaning);
        }
        let digits = name.len() - name.trim_end_matches(|character: char| character.is_ascii_digit()).len();
        let (kind, number) = name.split_at(name.len() - digits);
        let first = self.ranges.iter().rev().find_map(|ranges| ranges.get(kind))?;
        Some(Meaning::Register(first + number.parse::<u32>().ok()?))
    }

    /// `.global .align 4 .u32 NAME = 4;`, or `.b8 NAME[3] = {1, 2, 3};`
    fn variable(&mut self) -> Result<(), String> {
        let variable = self.declaration()?;
        let length = variable.bytes()?;
        let mut bytes = Vec::with_capacity(length);
        while !self.takes(";") {
            match self.next() {
                "" => return Err("the text ends in a variable".to_owned()),
                "=" | "{" | "}" | "," => {}
                text => {
                    let value = number(text).ok_or(format!("{text} is no number"))?;
                    bytes.extend_from_slice(&value.to_le_bytes()[..variable.of.bytes()]);
                }
            }
        }
        bytes.resize(length.next_multiple_of(8), 0);
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let data: Box<[u64]> = words.collect();
        self.means(variable.name, Meaning::Place(Space::Global, data.as_ptr() as u64));
        self.module.variables.push(data);
        Ok(())
    }

    fn shared(&mut self) -> Result<(), String> {
        let variable = self.declaration()?;
        let at = match variable.bytes {
            Some(bytes) => {
                let at = self.shared_at.next_multiple_of(variable.alignment);
                self.shared_at = at + bytes;
                at
            }
            None => self.module.shared_bytes,
        };
        self.means(variable.name, Meaning::Place(Space::Shared, at as u64));
        self.expect(";")
    }

    /// A variable in local memory, of which every thread has its own.
    fn local(&mut self) -> Result<Variable, String> {
        let variable = self.declaration()?;
        let bytes = variable.bytes()?;
        let at = self.module.local_bytes.next_multiple_of(variable.alignment);
        self.module.local_bytes = at + bytes;
        self.means(variable.name, Meaning::Place(Space::Local, at as u64));
        Ok(Variable { at, bytes })
    }

    fn open(&mut self) {
        self.scopes.push(HashMap::new());
        self.ranges.push(HashMap::new());
    }

    fn close(&mut self) {
        self.scopes.pop();
        self.ranges.pop();
    }

    /// `.entry name(.param .align 8 .b8 name[624]) .maxntid 128 {...}`
    fn kernel(&mut self) -> Result<(), String> {
        let name = self.next();
        self.open();
        let all = self.list("(", ")", |parser| {
            parser.expect(".param")?;
            parser.declaration()
        })?;
        let (mut parameters, mut end) = (Vec::new(), 0usize);
        for parameter in all {
            let (at, bytes) = (end.next_multiple_of(parameter.alignment), parameter.bytes()?);
            self.means(parameter.name, Meaning::Place(Space::Parameters, at as u64));
            parameters.push((at, bytes));
            end = at + bytes;
        }
        let (mut most_threads, mut min_blocks) = (None, None);
        while !self.takes("{") {
            match self.next() {
                "" => return Err(format!("{name} does nothing")),
                ".maxntid" => most_threads = Some(self.number()?),
                ".minnctapersm" => min_blocks = Some(self.number()?),
                _ => {}
            }
        }
        let start = self.module.code.len();
        self.body()?;
        self.close();
        self.module.kernels.push(Kernel {
            name: name.to_owned(),
            start,
            parameters,
            most_threads,
            min_blocks,
        });
        Ok(())
    }

    /// `.func (.param .b64 result) name(.param .b64 name) {...}`, or the same without what it does.
    fn function(&mut self) -> Result<(), String> {
        self.open();
        let results = if self.peek() == "(" { self.parameters()? } else { Vec::new() };
        let name = self.next();
        let parameters = self.parameters()?;
        if self.takes(";") {
            self.close();
            return Ok(());
        }
        self.expect("{")?;
        let start = self.module.code.len();
        self.functions.insert(name, Function { start, results, parameters });
        self.body()?;
        self.close();
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, String> {
        self.list("(", ")", |parser| {
            parser.expect(".param")?;
            parser.local()
        })
    }

    /// The statements of a function, up to its closing brace.
    fn body(&mut self) -> Result<(), String> {
        let mut labels: HashMap<&'a str, usize> = HashMap::new();
        let mut branches: Vec<Branch<'a>> = Vec::new();
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                "" => return Err("the text ends in a function".to_owned()),
                "{" => {
                    self.open();
                    depth += 1;
                }
                "}" => {
                    depth -= 1;
                    if depth > 0 {
                        self.close();
                    }
                }
                ".reg" => self.registers()?,
                ".shared" => self.shared()?,
                ".local" | ".param" => {
                    self.local()?;
                    self.expect(";")?;
                }
                ".pragma" => self.skip_to(";"),
                label if self.peek() == ":" => {
                    self.at += 1;
                    if labels.insert(label, self.module.code.len()).is_some() {
                        return Err(format!("there are two labels {label}"));
                    }
                }
                first => self.statement(first, &mut branches)?,
            }
        }
        // Whoever comes to the end returns.
        self.push(None, Operation::Return);
        for Branch { instruction, label, line } in branches {
            let &to = labels.get(label).ok_or(format!("line {line}: there is no label {label}"))?;
            self.module.code[instruction].operation = Operation::Branch { to };
        }
        Ok(())
    }

    fn push(&mut self, guard: Option<Operand>, operation: Operation) {
        let line = self.tokens.get(self.at.saturating_sub(1)).map_or(0, |token| token.line);
        self.module.code.push(Instruction { guard, operation, line });
    }

    /// `.reg .b32 %r<389>;` or `.reg .f16 lower, upper;`
    fn registers(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            let name = self.next();
            let first = self.module.registers as u32;
            if self.takes("<") {
                self.module.registers += self.number()?;
                self.expect(">")?;
                self.ranges.last_mut().expect("there is always one").insert(name, first);
            } else {
                self.module.registers += 1;
                self.means(name, Meaning::Register(first));
            }
            match self.next() {
                "," => {}
                ";" => return Ok(()),
                other => return Err(format!("{other} is not known here")),
            }
        }
    }

    /// An instruction, whose first word has been read.
    fn statement(&mut self, first: &'a str, branches: &mut Vec<Branch<'a>>) -> Result<(), String> {
        let mut guard = None;
        let mut name = first;
        if first == "@" {
            let is_not = self.takes("!");
            let predicate = self.next();
            guard = match (self.meaning(predicate), is_not) {
                (Some(Meaning::Register(register)), false) => Some(Operand::Register(register)),
                (Some(Meaning::Register(register)), true) => Some(Operand::Not(register)),
                _ => return Err(format!("{predicate} is no predicate")),
            };
            name = self.next();
        }
        let line = self.tokens[self.at - 1].line;
        match name.split('.').next() {
            Some("bra") => {
                let label = self.next();
                branches.push(Branch { instruction: self.module.code.len(), label, line });
                self.push(guard, Operation::Nothing);
                self.expect(";")
            }
            Some("call") if guard.is_some() => Err("calls under a predicate are not known here".to_owned()),
            Some("call") => self.call(line),
            _ => {
                let mut arguments = Vec::new();
                while !self.takes(";") {
                    if !arguments.is_empty() {
                        self.expect(",")?;
                    }
                    arguments.push(self.argument()?);
                }
                let operation = decode(&mut self.module, name, &arguments)
                    .map_err(|reason| format!("{name}: {reason}"))?;
                self.push(guard, operation);
                Ok(())
            }
        }
    }

    /// `call.uni (result), name, (argument);`
    fn call(&mut self, line: u32) -> Result<(), String> {
        let results = if self.peek() == "(" { self.places()? } else { Vec::new() };
        let name = self.next();
        let arguments = if self.takes(",") { self.places()? } else { Vec::new() };
        self.expect(";")?;
        let instruction = self.module.code.len();
        for _ in 0..arguments.len() + 1 + results.len() {
            self.push(None, Operation::Nothing);
        }
        self.calls.push(Call { instruction, name, line, arguments, results });
        Ok(())
    }

    /// `(a, b),`: where they lie in local memory.
    fn places(&mut self) -> Result<Vec<usize>, String> {
        let all = self.list("(", ")", |parser| {
            let name = parser.next();
            match parser.meaning(name) {
                Some(Meaning::Place(Space::Local, at)) => Ok(at as usize),
                _ => Err(format!("{name} is no parameter")),
            }
        })?;
        self.takes(",");
        Ok(all)
    }

    fn argument(&mut self) -> Result<Argument, String> {
        match self.peek() {
            "{" => Ok(Argument::Vector(self.list("{", "}", Self::argument)?)),
            "[" => {
                self.at += 1;
                let address = self.address()?;
                if !self.takes(",") {
                    self.expect("]")?;
                    return Ok(Argument::Address(address));
                }
                let coordinates = self.list("{", "}", Self::operand)?;
                self.expect("]")?;
                Ok(Argument::Tile(address, coordinates))
            }
            "_" => {
                self.at += 1;
                match self.takes("|") {
                    true => Ok(Argument::Pair(Operand::Constant(0), self.operand()?)),
                    false => Ok(Argument::Nowhere),
                }
            }
            "!" => {
                self.at += 1;
                match self.operand()? {
                    Operand::Register(register) => Ok(Argument::Operand(Operand::Not(register))),
                    other => Err(format!("{other:?} is no predicate")),
                }
            }
            name => {
                if let Some(special) = special(name) {
                    self.at += 1;
                    return Ok(Argument::Special(special));
                }
                let operand = self.operand()?;
                match self.takes("|") {
                    true => Ok(Argument::Pair(operand, self.operand()?)),
                    false => Ok(Argument::Operand(operand)),
                }
            }
        }
    }

    /// A register, a number, or the address of a variable.
    fn operand(&mut self) -> Result<Operand, String> {
        let is_negative = self.takes("-");
        let text = self.next();
        if let Some(value) = number(text) {
            return Ok(Operand::Constant(if is_negative { value.wrapping_neg() } else { value }));
        }
        match self.meaning(text) {
            Some(Meaning::Register(register)) => Ok(Operand::Register(register)),
            Some(Meaning::Place(_, at)) => Ok(Operand::Constant(at)),
            None => Err(format!("{text} is not known here")),
        }
    }

    /// `%rd1+8`, `name+8` or `%rd1`.
    fn address(&mut self) -> Result<Address, String> {
        let space = match self.meaning(self.peek()) {
            Some(Meaning::Place(space, _)) => space,
            _ => Space::Parameters,
        };
        let base = self.operand()?;
        let mut offset = 0;
        if self.takes("+") {
            let is_negative = self.takes("-");
            let bytes = self.number()? as i64;
            offset = if is_negative { -bytes } else { bytes };
        }
        Ok(Address { space, base, offset })
    }
}

/// A number: decimal, hexadecimal, or the bits of a float after 0f or 0d.
fn number(text: &str) -> Option<u64> {
    let hexadecimal =
        ["0x", "0X", "0f", "0F", "0d", "0D"].iter().find_map(|prefix| text.strip_prefix(prefix));
    match hexadecimal {
        Some(digits) => u64::from_str_radix(digits.trim_end_matches('U'), 16).ok(),
        None => text.trim_end_matches('U').parse().ok(),
    }
}

fn special(name: &str) -> Option<Special> {
    Some(match name {
        "%tid.x" => Special::TidX,
        "%ntid.x" => Special::NtidX,
        "%ctaid.x" => Special::CtaidX,
        "%ctaid.y" => Special::CtaidY,
        "%ctaid.z" => Special::CtaidZ,
        "%nctaid.x" => Special::NctaidX,
        "%nctaid.y" => Special::NctaidY,
        "%nctaid.z" => Special::NctaidZ,
        "%laneid" => Special::Laneid,
        "%tid.y" | "%tid.z" => Special::Zero,
        "%ntid.y" | "%ntid.z" => Special::One,
        _ => return None,
    })
}
