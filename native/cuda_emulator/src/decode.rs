//! What an instruction does, by its name and its arguments.

use crate::arithmetic::{Type, comparison, conversion, extension, function, function_with_carry};
use crate::module::{Address, Compute, Module, Operand, Operation, Reduction, Shuffle, Space, Special};

/// An argument as it is written.
#[derive(Debug, Clone)]
pub enum Argument {
    /// A register, a predicate or its opposite, or a number.
    Operand(Operand),
    /// `_`: a result that nobody wants.
    Nowhere,
    /// `{a, b}`
    Vector(Vec<Argument>),
    /// `a|p`: two results.
    Pair(Operand, Operand),
    /// `[a+8]`
    Address(Address),
    /// `%tid.x`
    Special(Special),
}

/// What is wrong with an instruction.
type Reason = String;

/// The operation of an instruction of a module that neither branches nor calls.
pub fn decode(module: &mut Module, name: &str, arguments: &[Argument]) -> Result<Operation, Reason> {
    let parts: Vec<&str> = name.split('.').filter(|part| !part.is_empty()).collect();
    let (name, modifiers) = (parts[0], &parts[1..]);
    let mut types = modifiers.iter().filter_map(|modifier| Type::named(modifier));
    let first_type = types.next();
    let second_type = types.next();
    let of = || first_type.ok_or("it has no type");
    let read = |at: usize| match arguments.get(at) {
        None => Ok(Operand::Constant(0)),
        Some(Argument::Operand(operand)) => Ok(*operand),
        Some(other) => Err(format!("{other:?} is no number")),
    };
    let written = |at: usize| match arguments.get(at) {
        Some(Argument::Operand(Operand::Register(register))) => Ok(*register),
        other => Err(format!("{other:?} is no register")),
    };
    let address = |at: usize| match arguments.get(at) {
        Some(Argument::Address(address)) => Ok(*address),
        other => Err(format!("{other:?} is no address")),
    };
    // Spaces are told by the instruction, but for parameters: those of functions lie in local memory.
    let space = |mut address: Address| {
        if modifiers.contains(&"global") {
            address.space = Space::Global;
        } else if modifiers.contains(&"shared") {
            address.space = Space::Shared;
        } else if modifiers.contains(&"local") {
            address.space = Space::Local;
        } else if !modifiers.contains(&"param") {
            return Err("addresses of any memory are not known here");
        }
        Ok(address)
    };
    let operands = || Ok::<_, Reason>([read(1)?, read(2)?, read(3)?, read(4)?]);

    Ok(match name {
        "prefetch" | "griddepcontrol" => Operation::Nothing,
        "ret" | "exit" => Operation::Return,
        "bar" | "barrier" if modifiers.contains(&"warp") => Operation::WarpBarrier { members: read(0)? },
        "bar" | "barrier" if modifiers.contains(&"red") => {
            let reduction = reduction(modifiers).ok_or("this reduction is not known here")?;
            zero(read(1)?)?;
            Operation::BlockBarrier { reduction: Some((reduction, written(0)?, read(2)?)) }
        }
        "bar" | "barrier" if modifiers.contains(&"sync") && arguments.len() == 1 => {
            zero(read(0)?)?;
            Operation::BlockBarrier { reduction: None }
        }
        "vote" => Operation::Vote {
            reduction: reduction(modifiers).ok_or("this vote is not known here")?,
            to: written(0)?,
            from: read(1)?,
            members: read(2)?,
        },
        "shfl" => {
            let (to, is_valid) = match &arguments[0] {
                Argument::Pair(Operand::Register(to), Operand::Register(valid)) => (*to, Some(*valid)),
                _ => (written(0)?, None),
            };
            let shuffle = modifiers.iter().find_map(|&modifier| match modifier {
                "up" => Some(Shuffle::Up),
                "down" => Some(Shuffle::Down),
                "bfly" => Some(Shuffle::Bfly),
                "idx" => Some(Shuffle::Idx),
                _ => None,
            });
            Operation::Shuffle {
                shuffle: shuffle.ok_or("this shuffle is not known here")?,
                to,
                is_valid,
                from: read(1)?,
                by: read(2)?,
                limits: read(3)?,
                members: read(4)?,
            }
        }
        "ld" => Operation::Load {
            address: space(address(1)?)?,
            to: registers(&arguments[0])?,
            bytes: of()?.bytes(),
            extend: extension(of()?).ok_or("numbers of this type are not known here")?,
        },
        "st" => Operation::Store {
            address: space(address(0)?)?,
            from: values(&arguments[1])?,
            bytes: of()?.bytes(),
        },
        "red" | "atom" => {
            let result = usize::from(name == "atom");
            let combine = modifiers.iter().find_map(|modifier| function(modifier, &[], first_type?));
            Operation::Atomic {
                address: space(address(result)?)?,
                to: if result == 1 { Some(written(0)?) } else { None },
                from: values(&arguments[result + 1])?,
                bytes: of()?.bytes(),
                combine: combine.ok_or("this is not known here")?,
            }
        }
        "mov" => match (&arguments[0], &arguments[1]) {
            (Argument::Vector(to), _) => {
                let bits = of()?.bits() / to.len() as u32;
                let place = |to: &Argument| match to {
                    Argument::Operand(Operand::Register(register)) => Ok(Some(*register)),
                    Argument::Nowhere => Ok(None),
                    other => Err(format!("{other:?} is no register")),
                };
                Operation::Unpack {
                    to: to.iter().map(place).collect::<Result<_, _>>()?,
                    from: read(1)?,
                    bits,
                }
            }
            (_, Argument::Vector(from)) => {
                let bits = of()?.bits() / from.len() as u32;
                Operation::Pack { to: written(0)?, from: values(&arguments[1])?, bits }
            }
            (_, Argument::Special(special)) => Operation::Special { special: *special, to: written(0)? },
            _ => compute(module, function(name, modifiers, of()?), written(0)?, operands()?)?,
        },
        // Comparisons that are combined with another predicate have more parts.
        "setp" if modifiers.len() == 2 => {
            compute(module, comparison(modifiers[0], of()?), written(0)?, operands()?)?
        }
        "cvt" => {
            let from = second_type.ok_or("it has one type, not two")?;
            compute(module, conversion(modifiers, of()?, from), written(0)?, operands()?)?
        }
        "addc" | "subc" | "madc" => with_carry(name, modifiers, of()?, written(0)?, operands()?)?,
        "add" | "sub" | "mad" if modifiers.contains(&"cc") => {
            with_carry(name, modifiers, of()?, written(0)?, operands()?)?
        }
        _ => compute(module, function(name, modifiers, of()?), written(0)?, operands()?)?,
    })
}

fn compute(
    module: &mut Module,
    function: Option<Compute>,
    to: u32,
    from: [Operand; 4],
) -> Result<Operation, Reason> {
    let compute = function.ok_or("it is not known here")?;
    let mut registers = [0; 4];
    for (register, operand) in registers.iter_mut().zip(from) {
        *register = match operand {
            Operand::Register(register) => register,
            Operand::Constant(value) => module.constant(value),
            Operand::Not(_) => return Err("it computes with the opposite of a predicate".to_owned()),
        };
    }
    Ok(Operation::Compute { compute, to, from: registers })
}

fn with_carry(
    name: &str,
    modifiers: &[&str],
    of: Type,
    to: u32,
    from: [Operand; 4],
) -> Result<Operation, Reason> {
    let compute = function_with_carry(name, modifiers, of).ok_or("it is not known here")?;
    Ok(Operation::ComputeWithCarry { compute, to, from, keeps: modifiers.contains(&"cc") })
}

/// The barrier that all threads of a block meet at; others are for parts of a block.
fn zero(barrier: Operand) -> Result<(), Reason> {
    if barrier == Operand::Constant(0) {
        Ok(())
    } else {
        Err("barriers beside the first are not known here".to_owned())
    }
}

fn reduction(modifiers: &[&str]) -> Option<Reduction> {
    modifiers.iter().find_map(|&modifier| match modifier {
        "all" | "and" => Some(Reduction::All),
        "any" | "or" => Some(Reduction::Any),
        "ballot" => Some(Reduction::Ballot),
        _ => None,
    })
}

/// One, or those of a vector.
fn values(argument: &Argument) -> Result<Vec<Operand>, Reason> {
    match argument {
        Argument::Operand(operand) => Ok(vec![*operand]),
        Argument::Vector(all) => {
            all.iter().map(values).collect::<Result<Vec<_>, _>>().map(|all| all.concat())
        }
        other => Err(format!("{other:?} is no number")),
    }
}

fn registers(argument: &Argument) -> Result<Vec<u32>, Reason> {
    let register = |operand| match operand {
        Operand::Register(register) => Ok(register),
        other => Err(format!("{other:?} is no register")),
    };
    values(argument)?.into_iter().map(register).collect()
}
