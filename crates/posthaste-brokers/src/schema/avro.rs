//! Avro's binary encoding: whether some bytes are a value of a schema, and nothing but it.
//!
//! `apache-avro` reads the schema. The bytes are walked here, and no value is built. Decoding by that crate
//! was refused: it goes as deep as the bytes say (a list of a million nodes is a stack of a million frames),
//! and an array of nulls takes no bytes for an item, so that a payload of ten bytes makes a vector of
//! billions. The walk has a bound for its depth, and one for its steps that grows with the payload.

use super::{poison, too_large};
use apache_avro::Schema;
use apache_avro::schema::{InnerDecimalSchema, Name, UuidSchema};
use posthaste::schema::Checked;
use std::collections::HashMap;

/// How deep values may be in each other: as deep as the reader of JSON allows.
const DEPTH_MAX: usize = 128;
/// How many values a byte may hold: null and empty records take none.
const STEPS_A_BYTE: usize = 4;
/// And how many a payload may hold besides.
const STEPS_FREE: usize = 65_536;
/// How many shapes a schema may have.
const SHAPES_MAX: usize = 65_536;

/// Where a shape is in its schema's list. Names make a graph of shapes, and may lead back.
type ShapeIndex = usize;

/// What a value looks like in bytes.
#[derive(Debug)]
enum AvroShape {
    Nothing,
    Boolean,
    Int,
    Long,
    /// So many bytes: float, double, fixed.
    Fixed(usize),
    Bytes,
    Text,
    /// One of so many symbols.
    Symbol(usize),
    List(ShapeIndex),
    Map(ShapeIndex),
    Union(Vec<ShapeIndex>),
    Record(Vec<(String, ShapeIndex)>),
}

/// A schema to walk by.
#[derive(Debug)]
pub(super) struct AvroSchema {
    shapes: Vec<AvroShape>,
    root: ShapeIndex,
}

impl AvroSchema {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let schema = Schema::parse_str(text).map_err(|error| error.to_string())?;
        let mut made = Maker::default();
        let root = made.place(&schema, None)?;
        Ok(Self { shapes: made.shapes, root })
    }

    pub(super) fn check(&self, body: &[u8]) -> Checked {
        if let Some(refused) = too_large(body) {
            return refused;
        }
        let steps = body.len() * STEPS_A_BYTE + STEPS_FREE;
        let mut walk = Walk { shapes: &self.shapes, rest: body, steps };
        let walked = walk.pass(self.root, 0).and_then(|()| match walk.rest.len() {
            0 => Ok(()),
            more => Err(Astray::new(format!("{more} bytes are left behind its end"))),
        });
        match walked {
            Ok(()) => Checked::Fine,
            Err(astray) => poison("schema.invalid", &astray.words()),
        }
    }
}

/// Makes shapes of a schema.
#[derive(Default)]
struct Maker {
    shapes: Vec<AvroShape>,
    named: HashMap<Name, ShapeIndex>,
}

impl Maker {
    fn add(&mut self, shape: AvroShape) -> Result<ShapeIndex, String> {
        if self.shapes.len() == SHAPES_MAX {
            return Err(format!("it has more than {SHAPES_MAX} parts"));
        }
        self.shapes.push(shape);
        Ok(self.shapes.len() - 1)
    }

    fn named(&mut self, name: &Name, space: Option<&str>, shape: AvroShape) -> Result<ShapeIndex, String> {
        let place = self.add(shape)?;
        self.named.insert(name.fully_qualified_name(space).into_owned(), place);
        Ok(place)
    }

    fn place(&mut self, schema: &Schema, space: Option<&str>) -> Result<ShapeIndex, String> {
        match schema {
            Schema::Null => self.add(AvroShape::Nothing),
            Schema::Boolean => self.add(AvroShape::Boolean),
            Schema::Int | Schema::Date | Schema::TimeMillis => self.add(AvroShape::Int),
            Schema::Long
            | Schema::TimeMicros
            | Schema::TimestampMillis
            | Schema::TimestampMicros
            | Schema::TimestampNanos
            | Schema::LocalTimestampMillis
            | Schema::LocalTimestampMicros
            | Schema::LocalTimestampNanos => self.add(AvroShape::Long),
            Schema::Float => self.add(AvroShape::Fixed(4)),
            Schema::Double => self.add(AvroShape::Fixed(8)),
            Schema::Bytes | Schema::BigDecimal | Schema::Uuid(UuidSchema::Bytes) => {
                self.add(AvroShape::Bytes)
            }
            Schema::Decimal(decimal) => match &decimal.inner {
                InnerDecimalSchema::Bytes => self.add(AvroShape::Bytes),
                InnerDecimalSchema::Fixed(fixed) => {
                    self.named(&fixed.name, space, AvroShape::Fixed(fixed.size))
                }
            },
            Schema::String | Schema::Uuid(UuidSchema::String) => self.add(AvroShape::Text),
            Schema::Fixed(fixed) | Schema::Duration(fixed) | Schema::Uuid(UuidSchema::Fixed(fixed)) => {
                self.named(&fixed.name, space, AvroShape::Fixed(fixed.size))
            }
            Schema::Enum(choice) => self.named(&choice.name, space, AvroShape::Symbol(choice.symbols.len())),
            Schema::Array(array) => {
                let items = self.place(&array.items, space)?;
                self.add(AvroShape::List(items))
            }
            Schema::Map(map) => {
                let values = self.place(&map.types, space)?;
                self.add(AvroShape::Map(values))
            }
            Schema::Union(union) => {
                let variants: Result<_, _> =
                    union.variants().iter().map(|variant| self.place(variant, space)).collect();
                self.add(AvroShape::Union(variants?))
            }
            Schema::Record(record) => {
                // It has its name before its fields are looked at: they may mean itself.
                let place = self.named(&record.name, space, AvroShape::Nothing)?;
                let name = record.name.fully_qualified_name(space);
                let field = |field: &apache_avro::schema::RecordField| {
                    Ok::<_, String>((field.name.clone(), self.place(&field.schema, name.namespace())?))
                };
                let fields: Result<_, _> = record.fields.iter().map(field).collect();
                self.shapes[place] = AvroShape::Record(fields?);
                Ok(place)
            }
            Schema::Ref { name } => {
                let name = name.fully_qualified_name(space);
                let found = self.named.get(&*name).copied();
                found.ok_or_else(|| format!("it names {}, which it does not define", name.fullname(None)))
            }
        }
    }
}

/// Where the bytes stop being a value of the schema. The path is gathered on the way back, from its end.
struct Astray {
    path: Vec<String>,
    why: String,
}

impl Astray {
    fn new(why: impl Into<String>) -> Self {
        Self { path: Vec::new(), why: why.into() }
    }

    fn within(mut self, step: impl ToString) -> Self {
        self.path.push(step.to_string());
        self
    }

    fn words(&self) -> String {
        let path: String = self.path.iter().rev().map(|step| format!("/{step}")).collect();
        format!("{}: {}", if path.is_empty() { "the payload" } else { &path }, self.why)
    }
}

/// A walk over bytes.
struct Walk<'a> {
    shapes: &'a [AvroShape],
    rest: &'a [u8],
    /// How many more values it may meet.
    steps: usize,
}

impl<'a> Walk<'a> {
    /// Passes one value.
    fn pass(&mut self, place: ShapeIndex, depth: usize) -> Result<(), Astray> {
        if depth == DEPTH_MAX {
            return Err(Astray::new(format!("values are nested deeper than {DEPTH_MAX}")));
        }
        self.steps = self.steps.checked_sub(1).ok_or_else(|| Astray::new("it has too many values"))?;
        let shapes = self.shapes;
        match &shapes[place] {
            AvroShape::Nothing => Ok(()),
            AvroShape::Boolean => match self.take(1)? {
                [0 | 1] => Ok(()),
                _ => Err(Astray::new("neither true nor false")),
            },
            AvroShape::Int => {
                let number = self.number()?;
                i32::try_from(number).map(drop).map_err(|_| Astray::new("no int of 32 bits"))
            }
            AvroShape::Long => self.number().map(drop),
            AvroShape::Fixed(size) => self.take(*size).map(drop),
            AvroShape::Bytes => self.piece().map(drop),
            AvroShape::Text => self.text(),
            AvroShape::Symbol(count) => self.choice(*count, "symbol").map(drop),
            AvroShape::Union(variants) => {
                let chosen = self.choice(variants.len(), "branch")?;
                self.pass(variants[chosen], depth + 1)
            }
            AvroShape::Record(fields) => fields.iter().try_for_each(|(name, field)| {
                self.pass(*field, depth + 1).map_err(|astray| astray.within(name))
            }),
            AvroShape::List(items) => {
                self.blocks(|walk, index| walk.pass(*items, depth + 1).map_err(|astray| astray.within(index)))
            }
            AvroShape::Map(values) => self.blocks(|walk, index| {
                let entry = walk.text().and_then(|()| walk.pass(*values, depth + 1));
                entry.map_err(|astray| astray.within(index))
            }),
        }
    }

    /// Items come in blocks. A negative count has the block's size in bytes behind it.
    fn blocks(&mut self, mut item: impl FnMut(&mut Self, u64) -> Result<(), Astray>) -> Result<(), Astray> {
        let mut index = 0;
        loop {
            let count = self.number()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                self.number()?;
            }
            for _ in 0..count.unsigned_abs() {
                item(self, index)?;
                index += 1;
            }
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Astray> {
        let taken = self.rest.split_at_checked(count).ok_or_else(|| Astray::new("the bytes end here"))?;
        self.rest = taken.1;
        Ok(taken.0)
    }

    /// A number: seven bits a byte, the lowest first, the sign in the lowest bit.
    fn number(&mut self) -> Result<i64, Astray> {
        let mut bits: u64 = 0;
        for at in 0..10 {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            if at == 9 && part > 1 {
                break;
            }
            bits |= part << (7 * at);
            if byte & 0x80 == 0 {
                return Ok((bits >> 1) as i64 ^ -((bits & 1) as i64));
            }
        }
        Err(Astray::new("no long of 64 bits"))
    }

    /// Bytes behind their length.
    fn piece(&mut self) -> Result<&'a [u8], Astray> {
        let length = self.number()?;
        self.take(usize::try_from(length).map_err(|_| Astray::new("a length below 0"))?)
    }

    fn text(&mut self) -> Result<(), Astray> {
        std::str::from_utf8(self.piece()?).map(drop).map_err(|_| Astray::new("text that is not UTF-8"))
    }

    fn choice(&mut self, count: usize, what: &str) -> Result<usize, Astray> {
        let chosen = usize::try_from(self.number()?).ok().filter(|chosen| *chosen < count);
        chosen.ok_or_else(|| Astray::new(format!("no such {what}: there are {count}")))
    }
}

#[cfg(test)]
mod tests;
