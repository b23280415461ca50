//! A machine's costs as TOML: each number with its unit and its origin. Also the quantities with units of scenarios.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;
use weir_lab::profile::Profile;

use super::error::{LabError, Source};

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

/// Error: the text is not a quantity of this kind.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not {expected}")]
pub struct NotAQuantity {
    text: String,
    expected: &'static str,
}

/// Parses a whole number with one of the units. Returns it in the smallest unit.
fn quantity(
    text: &str,
    units: &[(&str, u64)],
    expected: &'static str,
) -> Result<u64, NotAQuantity> {
    let error = || NotAQuantity { text: text.to_owned(), expected };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, factor) =
        units.iter().find(|(name, _)| *name == unit.trim_start()).ok_or_else(error)?;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)).ok_or_else(error)
}

macro_rules! quantities {
    ($($(#[$doc:meta])* $name:ident, $expected:literal, $units:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(pub u64);

        impl FromStr for $name {
            type Err = NotAQuantity;
            fn from_str(text: &str) -> Result<Self, NotAQuantity> {
                quantity(text, $units, $expected).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotAQuantity;
            fn try_from(text: String) -> Result<Self, NotAQuantity> {
                text.parse()
            }
        }
    )*};
}

quantities! {
    /// A time (ns).
    Time, "a time such as \"250us\" (ns, us, ms, s)",
        &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    /// A link's rate (bits a second).
    BitRate, "a rate such as \"10Gbit\" (bit, Kbit, Mbit, Gbit a second)",
        &[("bit", 1), ("Kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000)];
    /// A rate of packets (packets a second).
    PacketRate, "a rate such as \"80kpps\" (pps, kpps, Mpps)",
        &[("pps", 1), ("kpps", 1_000), ("Mpps", 1_000_000)];
    /// A cost of bytes (ps a byte).
    ByteCost, "a cost such as \"50ps/B\" (ps/B, ns/B)", &[("ps/B", 1), ("ns/B", 1_000)];
    /// A share (per mille).
    Permille, "a share such as \"600permille\"", &[("permille", 1)];
}

/// A rate of packets, or of the bits of their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Rate {
    /// Packets a second.
    Packets(u64),
    /// Bits a second.
    Bits(u64),
}

impl Rate {
    /// Returns the packets a second, for frames of `bytes`.
    pub fn packets_per_s(self, bytes: u32) -> f64 {
        match self {
            Self::Packets(packets) => packets as f64,
            Self::Bits(bits) => bits as f64 / (8.0 * f64::from(bytes.max(1))),
        }
    }

    /// Returns the time between two frames (ns). `None` if there are no frames or if it is less than 1 ns.
    pub fn gap_ns(self, bytes: u32) -> Option<u64> {
        // `as` saturates.
        let gap_ns = (1e9 / self.packets_per_s(bytes)) as u64;
        (1..u64::MAX).contains(&gap_ns).then_some(gap_ns)
    }
}

impl TryFrom<String> for Rate {
    type Error = NotAQuantity;
    fn try_from(text: String) -> Result<Self, NotAQuantity> {
        let packets = text.parse().map(|PacketRate(packets)| Self::Packets(packets));
        packets.or_else(|_| text.parse().map(|BitRate(bits)| Self::Bits(bits))).map_err(|_| {
            let expected =
                "a rate such as \"80kpps\" (pps, kpps, Mpps) or \"2Gbit\" (bit, Kbit, Mbit, Gbit)";
            NotAQuantity { text, expected }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!("250us".parse(), Ok(Time(250_000)));
        assert_eq!("1 Gbit".parse(), Ok(BitRate(1_000_000_000)));
        assert_eq!("80kpps".parse(), Ok(PacketRate(80_000)));
        assert_eq!("3ns/B".parse(), Ok(ByteCost(3_000)));
        for text in
            ["250", "us", "", "-1us", "1.5us", "99999999999999999999ns", "9999999999s9", "1m"]
        {
            assert!(text.parse::<Time>().is_err(), "{text}");
        }
        let rate = |text: &str| Rate::try_from(text.to_owned());
        assert_eq!(rate("80kpps").map(|it| it.gap_ns(64)), Ok(Some(12_500)));
        assert_eq!(rate("1Gbit").map(|it| it.gap_ns(1_250)), Ok(Some(10_000)));
        for nothing in ["0pps", "0bit", "2000Mpps"] {
            assert_eq!(rate(nothing).map(|it| it.gap_ns(64)), Ok(None), "{nothing}");
        }
        assert!(rate("80").is_err());
        assert!(format!("{}s", u64::MAX).parse::<Time>().is_err());
    }
}
