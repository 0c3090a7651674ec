//! Dates for chat templates: a small `strftime` over UTC. Not a calendar library: it knows what templates use.

use std::time::{SystemTime, UNIX_EPOCH};

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point in time, taken apart.
struct Civil {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

/// `format` filled in for `time` in UTC with English names. Directives that are not known stay as they are; `%-d` and
/// the like leave out padding.
pub(super) fn strftime(time: SystemTime, format: &str) -> String {
    let civil = Civil::of(time);
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let after_percent = rest.clone();
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        match directive.and_then(|directive| civil.field(directive, padded)) {
            Some(field) => text.push_str(&field),
            None => {
                text.push('%');
                rest = after_percent;
            }
        }
    }
    text
}

impl Civil {
    fn of(time: SystemTime) -> Self {
        // Times before 1970 cannot come from a clock that is set.
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        Self {
            year,
            month: month as usize,
            day,
            day_of_year: days - days_from_civil(year, 1, 1) + 1,
            // 1 January 1970 was a Thursday.
            weekday: (days + 4).rem_euclid(7) as usize,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    fn field(&self, directive: char, padded: bool) -> Option<String> {
        let number = |value: i64, width: usize| match padded {
            true => Some(format!("{value:0width$}")),
            false => Some(value.to_string()),
        };
        let joined = |parts: &str| Some(parts.chars().map(|part| self.part(part)).collect());
        match directive {
            'Y' => Some(self.year.to_string()),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as i64, 2),
            'd' => number(self.day, 2),
            'e' if padded => Some(format!("{:2}", self.day)),
            'e' => number(self.day, 0),
            'j' => number(self.day_of_year, 3),
            'H' => number(self.hour, 2),
            'I' => number((self.hour + 11) % 12 + 1, 2),
            'M' => number(self.minute, 2),
            'S' => number(self.second, 2),
            'p' => Some(if self.hour < 12 { "AM" } else { "PM" }.into()),
            'B' => Some(MONTHS[self.month - 1].into()),
            'b' | 'h' => Some(MONTHS[self.month - 1][..3].into()),
            'A' => Some(WEEKDAYS[self.weekday].into()),
            'a' => Some(WEEKDAYS[self.weekday][..3].into()),
            'F' => joined("Y-m-d"),
            'T' => joined("H:M:S"),
            'R' => joined("H:M"),
            'D' => joined("m/d/y"),
            'Z' => Some("UTC".into()),
            'z' => Some("+0000".into()),
            '%' => Some("%".into()),
            _ => None,
        }
    }

    fn part(&self, part: char) -> String {
        if part.is_ascii_alphabetic() { self.field(part, true).unwrap_or_default() } else { part.into() }
    }
}

/// Days from 1970-01-01 to a Gregorian date. Years are counted from March, so that the leap day comes last (Howard
/// Hinnant, "chrono-compatible low-level date algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The inverse: year, month and day.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64, format: &str) -> String {
        strftime(UNIX_EPOCH + Duration::from_secs(seconds), format)
    }

    #[test]
    fn known_moments() {
        assert_eq!(at(0, "%A %d %B %Y %H:%M:%S"), "Thursday 01 January 1970 00:00:00");
        // 2024-02-29 is a leap day; date -u -d @1709251199.
        assert_eq!(at(1_709_251_199, "%a, %-d %b %y, day %j, %I:%M %p"), "Thu, 29 Feb 24, day 060, 11:59 PM");
        assert_eq!(at(1_000_000_000, "%F %T %Z"), "2001-09-09 01:46:40 UTC");
        assert_eq!(at(946_684_800, "[%e] [%-e] %D"), "[ 1] [1] 01/01/00");
    }

    #[test]
    fn unknown_directives_stay() {
        assert_eq!(at(0, "100%% %Q %-Q %"), "100% %Q %-Q %");
    }

    #[test]
    fn dates_and_days_are_inverse_over_four_centuries() {
        let mut previous = civil_from_days(-1);
        for days in 0..146_097 {
            let date = civil_from_days(days);
            assert_eq!(days_from_civil(date.0, date.1, date.2), days);
            assert!(date > previous, "{date:?} after {previous:?}");
            previous = date;
        }
        assert_eq!(previous, (2369, 12, 31));
    }
}
