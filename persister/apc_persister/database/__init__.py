"""The database of the log: an embedded server, migrations, logins, and the guard of the schema."""
