//! Formats of strings as regular expressions, written from the documents that define them. Each takes a part of what its
//! document allows, the part that one writes: dates that the calendar has, no leap seconds, lengths with an end.

/// Formats that are enforced.
pub(super) const NAMES: [&str; 11] =
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "json-pointer"];

/// What a string of a format matches from its beginning to its end.
pub(super) fn pattern(format: &str) -> Option<String> {
    let pattern = match format {
        "date-time" => format!("{}T{TIME}", date()),
        "date" => date(),
        "time" => TIME.to_owned(),
        "duration" => DURATION.to_owned(),
        "email" => format!("{ATOM}(?:\\.{ATOM}){{0,3}}@{}", host()),
        "hostname" => host(),
        "ipv4" => ipv4(),
        "ipv6" => ipv6(),
        "uuid" => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".to_owned(),
        "uri" => uri(),
        "json-pointer" => "(?:/(?:[^/~]|~[01])*)*".to_owned(),
        _ => return None,
    };
    Some(pattern)
}

/// RFC 3339, section 5.6: with February as long as it is.
fn date() -> String {
    const MONTHS: &str = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])";
    // Years that 4 divides and 100 does not, and those that 400 divides.
    const LEAP: &str = "[0-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00";
    format!("(?:[0-9]{{4}}-(?:{MONTHS})|(?:{LEAP})-02-29)")
}

/// RFC 3339, section 5.6.
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// ISO 8601 as in RFC 3339, appendix A, with up to four digits a part.
const DURATION: &str = concat!(
    "P(?:[0-9]{1,4}W",
    "|(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)",
    "(?:T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))?",
    "|T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))",
);

/// RFC 5321, section 4.1.2: the dotted form of the local part. Four of them stay below its 64 characters.
const ATOM: &str = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}";

/// RFC 1123, section 2.1: up to four labels of up to 63 characters, the last one letters.
fn host() -> String {
    const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,24}[A-Za-z0-9])?";
    format!("(?:{LABEL}\\.){{0,3}}[A-Za-z]{{2,25}}")
}

/// RFC 2673, section 3.2.
fn ipv4() -> String {
    const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    format!("(?:{OCTET}\\.){{3}}{OCTET}")
}

/// RFC 4291, section 2.2, forms 1 and 2: a run of zeros is written `::` once.
fn ipv6() -> String {
    const GROUP: &str = "[0-9a-fA-F]{1,4}";
    let mut forms = vec![format!("(?:{GROUP}:){{7}}{GROUP}")];
    for before in 0..=6 {
        let head = match before {
            0 => String::new(),
            _ => format!("{GROUP}(?::{GROUP}){{{}}}", before - 1),
        };
        // At least two groups are left out.
        let tail = match 6 - before {
            0 => String::new(),
            most => format!("(?:{GROUP}(?::{GROUP}){{0,{}}})?", most - 1),
        };
        forms.push(format!("{head}::{tail}"));
    }
    format!("(?:{})", forms.join("|"))
}

/// RFC 3986, section 3: with an authority, a host name or an address in it, and a path, query and fragment.
fn uri() -> String {
    const CHARACTER: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})";
    format!(
        "[a-z][a-z0-9+.-]{{1,9}}://(?:{}|{})(?::[1-9][0-9]{{0,3}})?(?:/{CHARACTER}{{0,40}}){{0,8}}\
         (?:\\?(?:{CHARACTER}|[/?]){{0,80}})?(?:#(?:{CHARACTER}|[/?]){{0,40}})?",
        host(),
        ipv4()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(format: &str, text: &str) -> bool {
        regex::Regex::new(&format!("^(?:{})$", pattern(format).unwrap())).unwrap().is_match(text)
    }

    #[test]
    fn every_format_has_a_pattern_and_takes_an_example() {
        let examples = [
            "2024-02-29T23:59:59.123Z",
            "1999-12-31",
            "00:00:00+05:30",
            "P1Y2M3DT4H5M6S",
            "first.last@mail.example.org",
            "a-b.example",
            "192.168.0.255",
            "2001:db8::8a2e:370:7334",
            "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "https://example.org:8080/a/b%20c?q=1#top",
            "/a~1b/0",
        ];
        for (format, example) in NAMES.iter().zip(examples) {
            assert!(matches(format, example), "{format}: {example}");
        }
        assert!(pattern("phone").is_none());
    }

    #[test]
    fn the_calendar_decides_about_the_29th_of_february() {
        let leap = |year: u32| year.is_multiple_of(if year.is_multiple_of(100) { 400 } else { 4 });
        for year in 0..=9999 {
            assert_eq!(matches("date", &format!("{year:04}-02-29")), leap(year), "{year}");
        }
        for wrong in ["2023-04-31", "2023-13-01", "2023-00-01", "2023-01-00", "2023-02-30", "23-01-01"] {
            assert!(!matches("date", wrong), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_what_the_standard_library_reads() {
        for text in ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6::", "::3:4:5:6:7:8", "1:2::5:6:7:8"] {
            assert!(matches("ipv6", text) && text.parse::<std::net::Ipv6Addr>().is_ok(), "{text}");
        }
        for text in ["1:2:3:4:5:6:7::", ":::", "1::2::3", "1:2:3", "12345::", ":1", "1:2:3:4:5:6:7:8:9"] {
            assert!(!matches("ipv6", text), "{text}");
        }
        for text in ["256.1.1.1", "1.1.1", "01.1.1.1"] {
            assert!(!matches("ipv4", text), "{text}");
        }
    }
}
