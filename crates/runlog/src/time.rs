//! Timestamps as text.

/// Formats seconds since 1970-01-01 UTC as RFC 3339 in UTC, such as "2026-11-20T13:05:00Z", by the civil calendar (Howard
/// Hinnant, "chrono-compatible low-level date algorithms"). Times before 1970 or after the year 9999 give an empty text.
pub fn rfc3339(unix_s: f64) -> String {
    if !(0.0..253_402_300_800.0).contains(&unix_s) {
        return String::new();
    }
    let seconds = unix_s as i64;
    let days = seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Values of `date -u -d @N`.
        for (unix, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_709_251_199.9, "2024-02-29T23:59:59Z"),
            (1_795_179_901.0, "2026-11-20T13:05:01Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00Z"),
            (f64::NAN, ""),
            (-5.0, ""),
            (1e300, ""),
        ] {
            assert_eq!(rfc3339(unix), text);
        }
    }
}
