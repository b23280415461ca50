//! A machine's costs as TOML: each number with its unit and its origin.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;
use toml::Spanned;
use weir_lab::profile::Profile;

use super::error::{LabError, Source};
use super::units::{ByteCost, Permille, Time};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    costs: Spanned<BTreeMap<Spanned<String>, Spanned<Cost>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    value: Spanned<String>,
    source: Option<String>,
    fitted: Option<String>,
    assumed: Option<String>,
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The machine's title.
    pub title: String,
    /// The machine's costs.
    pub profile: Profile,
    /// The costs in the file, each with its origin, in the order of [`Profile::fields`].
    pub costs: Vec<StatedCost>,
}

/// A cost in a profile's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedCost {
    /// Name in [`Profile::fields`].
    pub field: &'static str,
    /// Key in the file.
    pub name: &'static str,
    /// Number with its unit.
    pub value: String,
    /// The number's origin.
    pub origin: Origin,
    /// The source, the claim that it was fitted to, or the reason for an assumption.
    pub text: String,
}

/// Origin of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A publication or a measurement.
    Source,
    /// A choice that reproduces a figure.
    Fitted,
    /// An assumption.
    Assumed,
}

impl Origin {
    /// Returns the key in a profile.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
        }
    }
}

/// Reads a number with its unit.
pub type Read = fn(&str) -> Result<u64, String>;

/// Returns the key of a field of [`Profile::fields`], without the unit at its end, and the function that reads its
/// number.
pub fn key(field: &'static str) -> (&'static str, Read) {
    fn read<T: FromStr<Err: ToString>>(text: &str, value: fn(T) -> u64) -> Result<u64, String> {
        text.parse().map(value).map_err(|error: T::Err| error.to_string())
    }
    let bytes: Read = |text| read(text, |it: ByteCost| it.0);
    match field {
        "copy_ps_per_byte" => ("copy_per_byte", bytes),
        "receive_ps_per_byte" => ("receive_per_byte", bytes),
        "send_ps_per_byte" => ("send_per_byte", bytes),
        "footprint_permille" => ("footprint", |text| read(text, |it: Permille| it.0)),
        "smt_permille" => ("smt", |text| read(text, |it: Permille| it.0)),
        "warm_permille" => ("warm", |text| read(text, |it: Permille| it.0)),
        _ => (field.strip_suffix("_ns").unwrap_or(field), |text| read(text, |it: Time| it.0)),
    }
}

/// Formats a field's number with its unit, as [`key`]'s function reads it.
pub fn written(field: &str, value: u64) -> String {
    let unit = match field {
        _ if field.ends_with("_ps_per_byte") => "ps/B",
        _ if field.ends_with("_permille") => "permille",
        _ => "ns",
    };
    format!("{value}{unit}")
}

impl Machine {
    /// Reads a profile.
    ///
    /// # Errors
    /// The first problem, with its place.
    pub fn parse(source: Source<'_>) -> Result<Self, LabError> {
        let file: File = toml::from_str(source.text).map_err(|error| source.toml(&error))?;
        let costs = file.costs.get_ref();
        let known: Vec<_> =
            Profile::example().fields().iter().map(|field| key(field.0).0).collect();
        for name in costs.keys() {
            if !known.contains(&name.get_ref().as_str()) {
                let message = format!(
                    "unknown cost `{}`, expected one of {}",
                    name.get_ref(),
                    known.join(", ")
                );
                return Err(source.invalid(&message, Some(name.span())));
            }
        }
        let mut stated = Vec::new();
        let profile = Profile::from_fields(|field| {
            let (name, read) = key(field);
            let found = costs.iter().find(|(key, _)| key.get_ref() == name);
            if found.is_none() && Profile::OPTIONAL.contains(&field) {
                return Ok(0);
            }
            let (_, cost) = found.ok_or_else(|| {
                source.invalid(&format!("`{name}` is missing"), Some(file.costs.span()))
            })?;
            let Cost { value, source: from, fitted: to, assumed } = cost.get_ref();
            let (origin, text) = match (from, to, assumed) {
                (Some(text), None, None) => (Origin::Source, text),
                (None, Some(text), None) => (Origin::Fitted, text),
                (None, None, Some(text)) => (Origin::Assumed, text),
                _ => {
                    let message = "expected one of `source`, `fitted` and `assumed`: where the number is from";
                    return Err(source.invalid(message, Some(cost.span())));
                }
            };
            let (value_text, text) = (value.get_ref().clone(), text.clone());
            stated.push(StatedCost { field, name, value: value_text, origin, text });
            read(value.get_ref()).map_err(|error| source.invalid(&error, Some(value.span())))
        })?;
        Ok(Self { title: file.title, profile, costs: stated })
    }

    /// Iterates over the fitted costs.
    pub fn fitted(&self) -> impl Iterator<Item = &StatedCost> {
        self.costs.iter().filter(|cost| cost.origin == Origin::Fitted)
    }
}
