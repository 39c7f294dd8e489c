// Append with JDBC. JDBC_URL=jdbc:postgresql://… java shop.WithJdbc
package shop;

import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

public class WithJdbc {
    static void placeOrder(Connection db, int total) throws SQLException {
        db.setAutoCommit(false); // with autocommit the event would be there whatever becomes of the order
        try (var insert = db.prepareStatement("insert into orders (total) values (?) returning id");
                var append = db.prepareStatement("select posthaste.append('orders.placed', ?::jsonb, key => ?)")) {
            insert.setInt(1, total);
            var inserted = insert.executeQuery();
            inserted.next();
            var order = inserted.getLong(1);
            append.setString(1, "{\"order\": " + order + "}");
            append.setLong(2, order);
            append.execute();
            if (total <= 0) {
                throw new IllegalArgumentException("an order needs a total");
            }
            db.commit();
        } catch (SQLException | RuntimeException error) {
            db.rollback(); // neither the order nor its event
            throw error;
        }
    }

    public static void main(String[] arguments) throws SQLException {
        try (var db = DriverManager.getConnection(System.getenv("JDBC_URL"))) {
            placeOrder(db, 990);
            try {
                placeOrder(db, 0);
            } catch (IllegalArgumentException refused) {
                System.out.println("refused: " + refused.getMessage());
            }
        }
    }
}
