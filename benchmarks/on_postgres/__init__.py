"""The rows for PostgreSQL: fork, turn, load, chain and writers on a server that is started for the run.

| module | what |
|---|---|
| `measurement` | what is measured, and the tables |
| `floor` | the same rows by psycopg, in one statement |
| `peers` | LangGraph and OpenAI's Agents SDK, on the same server |
"""
