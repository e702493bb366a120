//! Schedules against dates that were looked up in a calendar.

use super::*;

fn at(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().expect("is a time");
    Timestamp(u64::try_from(at.as_millisecond()).expect("is after 1970"))
}

#[track_caller]
fn assert_next(schedule: &str, after: &str, expected: &str) {
    let schedule: Schedule = schedule.parse().expect("is a schedule");
    assert_eq!(schedule.next_after(at(after)), Some(at(expected)), "after {after}");
}

#[test]
fn the_next_due_minute() {
    assert_next("0 3 * * *", "2026-11-30T02:59:59Z", "2026-11-30T03:00:00Z");
    assert_next("0 3 * * *", "2026-11-30T03:00:00Z", "2026-12-01T03:00:00Z");
    assert_next("*/15 * * * *", "2026-11-30T23:46:00Z", "2026-12-01T00:00:00Z");
    assert_next("5/20 * * * *", "2026-11-30T10:30:00Z", "2026-11-30T10:45:00Z");
    assert_next("@weekly", "2026-11-30T00:00:00Z", "2026-12-06T00:00:00Z");
    // 1 December 2026 is a Tuesday.
    assert_next("30 4 * * TUE", "2026-11-30T12:00:00Z", "2026-12-01T04:30:00Z");
    assert_next("30 4 * * 1-5", "2026-12-04T05:00:00Z", "2026-12-07T04:30:00Z");
    assert_next("0 0 29 2 *", "2026-11-30T00:00:00Z", "2028-02-29T00:00:00Z");
    assert_next("0 0 31 * *", "2026-11-01T00:00:00Z", "2026-12-31T00:00:00Z");
    assert_next("0 12 1,15 jan-mar *", "2026-11-30T00:00:00Z", "2027-01-01T12:00:00Z");
    assert_next("0 0 * * 7", "2026-11-30T00:00:00Z", "2026-12-06T00:00:00Z");
}

#[test]
fn of_two_restricted_days_either_is_enough() {
    assert_next("0 0 13 * FRI", "2026-11-30T00:00:00Z", "2026-12-04T00:00:00Z");
    assert_next("0 0 13 * FRI", "2026-12-11T00:00:00Z", "2026-12-13T00:00:00Z");
}

#[test]
fn what_is_no_schedule_is_named() {
    for (text, words) in [
        ("0 3 * *", "five fields"),
        ("", "five fields"),
        ("60 3 * * *", "minute '60' is not a number from 0 to 59"),
        ("0 5-3 * * *", "hour '5-3'"),
        ("0 0 0 * *", "day of month '0'"),
        ("0 0 * FOO *", "month 'FOO'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("0 0 30 2 *", "never due"),
    ] {
        let error = text.parse::<Schedule>().expect_err("is refused").to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
