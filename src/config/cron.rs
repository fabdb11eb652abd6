//! Five-field cron lines, checked field by field so that the message names the field.
