from engine.ticket import Ticket


def test_a_new_ticket_is_of_its_rows_and_nothing_has_happened():
    ticket = Ticket({"row": 2})
    assert ticket.rows == {"row": 2}
    assert not ticket.appended
    assert (ticket.draw, ticket.error, ticket.faults) == (None, None, {})


def test_faults_of_two_tickets_are_apart():
    first, second = Ticket({}), Ticket({})
    first.faults["row"] = "fault"
    assert second.faults == {}
